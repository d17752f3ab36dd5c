"""Grammars as llguidance runs them."""

from collections import OrderedDict
from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from paceline.contracts.errors import InvalidRequest
from paceline.engine.step import Int32

CACHED = 32
"""Grammars that are kept compiled. Requests that follow one share its automaton, which grows as it is explored."""

_STATES = 50_000
"""Of one grammar's automaton, 1 to 2 kB each. More than a thousand are rare."""

_FUEL = 100_000
"""Work for one mask: 7 ms on the engine thread."""

_MOST_FORCED = 512
"""Tokens in a row that are without a choice: each mask looks ahead to the end of them, at 2 us a token."""

_CHUNK = 64
"""Tokens that are consumed without letting other threads run: a few hundred microseconds."""

_TOO_FORCED = f"it leaves no choice for more than {_MOST_FORCED} tokens in a row"


class GrammarConstraint:
    """Implements `Constraint`."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._error: str | None = None

    @property
    def ended(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str | None:
        return self._error or _why(self._matcher) or None

    def take(self, token: int) -> bool:
        return self._matcher.try_consume_tokens([token]) == 1

    def take_back(self) -> None:
        self._matcher.rollback(1)

    def fill(self, mask: Int32) -> None:
        address: int = mask.__array_interface__["data"][0]
        self._matcher.unsafe_compute_mask_ptr(address, mask.nbytes)
        if self._error or self._matcher.is_error():
            mask[:] = 0

    def forced(self) -> list[int]:
        tokens = self._matcher.compute_ff_tokens()
        if len(tokens) > _MOST_FORCED:
            self._error = _TOO_FORCED
            return []
        return tokens


class Grammars:
    """Compiles grammars for one vocabulary. For one thread, which may be another than that of the constraints."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self._vocabulary = vocabulary
        self._limits = LLParserLimits(max_lexer_states=_STATES, step_lexer_fuel=_FUEL, verbose_errors=False)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def constraint(self, grammar: str, output: Sequence[int]) -> GrammarConstraint:
        """In the state behind `output`. Other threads run while the grammar is compiled.

        Raises `InvalidRequest` for a grammar that cannot be compiled, or that forbids `output`.
        """
        matcher = self._compile(grammar).deep_copy()
        for begin in range(0, len(output), _CHUNK):
            tokens = list(output[begin : begin + _CHUNK])
            if matcher.try_consume_tokens(tokens) != len(tokens):
                raise InvalidRequest("the grammar forbids what was generated before", param="grammar")
        return GrammarConstraint(matcher)

    def _compile(self, grammar: str) -> LLMatcher:
        if (matcher := self._compiled.get(grammar)) is not None:
            self._compiled.move_to_end(grammar)
            return matcher
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise InvalidRequest(f"the grammar cannot be compiled: {_why(matcher)}", param="grammar")
        # The first mask is by far the most expensive one.
        matcher.compute_bitmask()
        if matcher.is_error():
            raise InvalidRequest(f"the grammar is too complex: {_why(matcher)}", param="grammar")
        if len(matcher.compute_ff_tokens()) > _MOST_FORCED:
            raise InvalidRequest(f"the grammar is too long: {_TOO_FORCED}", param="grammar")
        self._compiled[grammar] = matcher
        if len(self._compiled) > CACHED:
            self._compiled.popitem(last=False)
        return matcher


def _why(matcher: LLMatcher) -> str:
    """The error of a matcher, "" if there is none, without what its library says of its own state."""
    error: str = matcher.get_error()
    return error.removesuffix("\n<non-verbose/>")
