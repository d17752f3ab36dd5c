"""The tokens of one answer to deltas."""

from collections.abc import Sequence

from paceline.contracts.messages import FinishReason
from paceline.gateway.deltas import CallBegun, Delta, End, Reasoning, Text, TokenLogprob
from paceline.gateway.formats.interface import Parser
from paceline.gateway.text import TextStream
from paceline.model.tokenizer import Tokenizer


class Answering:
    """What comes out depends on the tokens alone, never on how they were grouped on the way here.

    `reasoning_tokens` counts those that only made `Reasoning`.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], parser: Parser | None, *, thinking: bool
    ) -> None:
        """Without a `parser` everything is text. `thinking` when the prompt ends inside the model's reasoning."""
        self.reasoning_tokens = 0
        self._text = TextStream(tokenizer.token_bytes, stops)
        self._special = tokenizer.special
        self._parser = parser
        self._thinking = thinking
        self._called = False
        self._scored: list[TokenLogprob] = []

    @property
    def may_stop(self) -> bool:
        """Whether text can end it."""
        return self._text.may_stop

    @property
    def stopped(self) -> bool:
        """A stop string is complete: the answer ends here."""
        return self._text.stopped

    @property
    def tokens(self) -> int:
        """Tokens that were used, up to the one that completed a stop string."""
        return self._text.tokens

    def push(self, tokens: Sequence[int]) -> list[Delta]:
        """What these tokens made visible, often nothing. Tokens after a stop string are not used."""
        if self._parser is None:
            shown = self._text.push(tokens)
            return [Text(shown)] if shown else []
        deltas: list[Delta] = []
        for token in tokens:
            if self.stopped:
                break
            fresh = self._parse(self._parser, token)
            self._count(fresh)
            deltas += fresh
        return deltas

    def push_scored(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]
    ) -> tuple[list[Delta], list[TokenLogprob]]:
        """As `push`, with the log probabilities of tokens that became text. Those of reasoning and calls are dropped;
        those of tokens whose text is held back come with it."""
        deltas: list[Delta] = []
        shown: list[TokenLogprob] = []
        for token, logprob in zip(tokens, logprobs, strict=True):
            if self.stopped:
                break
            fresh = self.push((token,))
            deltas += fresh
            self._scored.append(logprob)
            if any(isinstance(d, Text) for d in fresh) or self._parser is None:
                shown += self._scored
            if fresh or self._parser is None:
                self._scored.clear()
        return deltas, shown

    def finish(self) -> list[Delta]:
        """What was held back, once all tokens were pushed."""
        rest = self._text.finish()
        if self._parser is None:
            return [Text(rest)] if rest else []
        deltas = [*(self._parser.push(rest) if rest else ()), *self._parser.finish()]
        self._called = self._called or any(isinstance(d, CallBegun) for d in deltas)
        return deltas

    def end(self, reason: FinishReason) -> End:
        """Why the answer ended, where its workers say `reason`."""
        if self.stopped:
            return End("stop", self._text.stop)
        return End("tool_calls" if self._called and reason == "stop" else reason)

    def _parse(self, parser: Parser, token: int) -> list[Delta]:
        special = self._special(token)
        if special is None:
            shown = self._text.push((token,))
            return parser.push(shown) if shown else []
        rest = self._text.interrupt()
        return [*(parser.push(rest) if rest else ()), *parser.special(special)]

    def _count(self, deltas: Sequence[Delta]) -> None:
        if deltas:
            self._thinking = isinstance(deltas[-1], Reasoning)
            self._called = self._called or any(isinstance(d, CallBegun) for d in deltas)
        self.reasoning_tokens += self._thinking
