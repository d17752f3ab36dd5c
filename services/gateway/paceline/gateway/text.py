"""Tokens to the text a client sees: whole characters only, and nothing of a stop string.

The outcome depends on the tokens alone, never on how they were grouped on the way here.
"""

import codecs
from collections.abc import Callable, Iterable, Sequence


class Detokenizer:
    """Token bytes through an incremental UTF-8 decoder, so that a character split over tokens waits for its rest."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Iterable[int]) -> str:
        return self._decoder.decode(b"".join(map(self._token_bytes, tokens)))

    def flush(self) -> str:
        """One U+FFFD if the output ends inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)


class _Automaton:
    """Knuth-Morris-Pratt over one stop string; `state` is how much of it the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        self._fallback = [0] * (len(stop) + 1)
        k = 0
        for i in range(1, len(stop)):
            while k and stop[i] != stop[k]:
                k = self._fallback[k]
            k += stop[i] == stop[k]
            self._fallback[i + 1] = k

    def step(self, char: str) -> bool:
        """Advance by one character; True when the stop string is complete."""
        while self.state and self.stop[self.state] != char:
            self.state = self._fallback[self.state]
        self.state += self.stop[self.state] == char
        return self.state == len(self.stop)


class StopStrings:
    """Holds back the longest suffix that can still become a stop string, and cuts at the first one completed.

    Of several that end at the same character the longest counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._held = ""
        self._automata = [_Automaton(s) for s in stops]

    def push(self, text: str) -> str:
        """What may be shown now. Nothing may be pushed once `matched`."""
        text = self._held + text
        for end in range(len(self._held) + 1, len(text) + 1):
            complete = [a.stop for a in self._automata if a.step(text[end - 1])]
            if complete:
                self.matched = max(complete, key=len)
                self._held = ""
                return text[: end - len(self.matched)]
        held = max((a.state for a in self._automata), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """The text that was held back in vain. What comes next begins anew."""
        held, self._held = self._held, ""
        for automaton in self._automata:
            automaton.state = 0
        return held


class TextStream:
    """The visible text of one answer. `tokens` counts what was used, up to the token that completed a stop string if
    the answer `may_stop` at one."""

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Sequence[str]) -> None:
        self.tokens = 0
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopStrings(stops)
        self.may_stop = bool(stops)

    @property
    def stopped(self) -> bool:
        """A stop string is complete: the answer ends here."""
        return self._stops.matched is not None

    @property
    def stop(self) -> str | None:
        """The stop string that is complete."""
        return self._stops.matched

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens made visible, often "". Tokens after a stop string are not used."""
        if not self.may_stop:
            self.tokens += len(tokens)
            return self._detokenizer.push(tokens)
        shown = []
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            shown.append(self._stops.push(self._detokenizer.push((token,))))
        return "".join(shown)

    def interrupt(self) -> str:
        """A token without text was pushed, across which neither a character nor a stop string reaches: the text that
        was held back before it."""
        self.tokens += 1
        return self.finish()

    def finish(self) -> str:
        """The rest of the text, once all tokens were pushed."""
        if self.stopped:
            return ""
        return self._stops.push(self._detokenizer.flush()) + self._stops.flush()
