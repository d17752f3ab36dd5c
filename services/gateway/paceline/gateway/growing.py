"""Prompts that grow: of a conversation's next turn only what is new is tokenized.

A tokenizer cuts text at added tokens such as "<|im_end|>" before it does anything else, so that what stands before the
end of one is tokenized the same whatever follows. Where two prompts agree up to such a cut, they share their tokens.
"""

import re
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from itertools import accumulate

from paceline.model.tokenizer import Tokenizer

# Below it tokenizing takes less than remembering.
_SMALL = 4096
# Prompts that begin alike are compared; those of one agent do, by its system prompt.
_HEAD = 1024
_ALIKE = 16
_MAX_CHARACTERS = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A prompt with its tokens. `ends` are its cuts, behind which so many tokens (`counts`) have been said."""

    text: str
    tokens: "array[int]"
    ends: list[int]
    counts: list[int]


class Growing:
    """Encodes as `tokenizer` does. Safe to use from several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        cuts = tokenizer.cuts
        self._cut = (
            re.compile("|".join(map(re.escape, sorted(cuts, key=len, reverse=True)))) if cuts else None
        )
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._alike: dict[str, list[int]] = {}
        self._characters = 0
        self._added = 0
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Raises as `Tokenizer.encode` does."""
        if self._cut is None or len(text) < _SMALL:
            return self._tokenizer.encode(text)
        found = self._longest(text)
        known, cut = found if found is not None else (None, -1)
        start = known.ends[cut] if known else 0
        tokens = known.tokens[: known.counts[cut]] if known else array("i")
        ends = [match.end() for match in self._cut.finditer(text, start)]
        pieces = [text[a:b] for a, b in zip([start, *ends], [*ends, len(text)], strict=True)]
        encoded = self._tokenizer.encode_all(pieces)
        counts = list(accumulate(map(len, encoded[:-1]), initial=len(tokens)))[1:]
        for piece in encoded:
            tokens.extend(piece)
        grown = known if known and cut == len(known.ends) - 1 else None
        if known:
            ends, counts = known.ends[: cut + 1] + ends, known.counts[: cut + 1] + counts
        self._remember(_Known(text, tokens, ends, counts), grown)
        return tokens.tolist()

    def _longest(self, text: str) -> tuple[_Known, int] | None:
        """What is known that agrees with `text` up to the farthest cut, and the number of that cut."""
        with self._lock:
            candidates = [self._known[i] for i in self._alike.get(text[:_HEAD], ())]
        best: tuple[_Known, int] | None = None
        for known in candidates:
            cut = _last_agreed(known, text)
            if cut >= 0 and (best is None or known.ends[cut] > best[0].ends[best[1]]):
                best = known, cut
        return best

    def _remember(self, known: _Known, before: _Known | None) -> None:
        """In place of `before`, which has grown to it."""
        if not known.ends:
            return
        with self._lock:
            alike = self._alike.setdefault(known.text[:_HEAD], [])
            for i in list(alike):
                if self._known[i] is before or self._known[i].text == known.text:
                    self._forget(i)
            while len(alike) >= _ALIKE:
                self._forget(alike[0])
            self._added += 1
            self._alike.setdefault(known.text[:_HEAD], alike).append(self._added)
            self._known[self._added] = known
            self._characters += len(known.text)
            while self._characters > _MAX_CHARACTERS:
                self._forget(next(iter(self._known)))

    def _forget(self, number: int) -> None:
        known = self._known.pop(number)
        self._characters -= len(known.text)
        alike = self._alike[known.text[:_HEAD]]
        alike.remove(number)
        if not alike:
            del self._alike[known.text[:_HEAD]]


def _last_agreed(known: _Known, text: str) -> int:
    """The number of the last cut up to which both agree, -1 if there is none."""
    return bisect_right(known.ends, False, key=lambda end: not text.startswith(known.text[:end])) - 1
