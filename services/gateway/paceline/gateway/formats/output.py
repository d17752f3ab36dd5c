"""What an answer was found to be made of, in the order of its deltas."""

from collections.abc import Callable

from paceline.gateway.deltas import CallArguments, CallBegun, Delta, Reasoning, Text
from paceline.gateway.formats.source import BLANKS


class Output:
    """Gathers deltas, joins neighbours of one kind, and drops whitespace that lies directly around calls."""

    def __init__(self, new_id: Callable[[], str], *, parallel: bool) -> None:
        """Without `parallel` only the first call counts, and later ones are dropped."""
        self._new_id = new_id
        self._parallel = parallel
        self._calls = 0
        self._muted = False
        self._blanks: list[str] = []
        self._after_call = False
        self._deltas: list[Delta] = []
        self._kind: type[Text] | type[Reasoning] | type[CallArguments] | None = None
        self._pieces: list[str] = []

    def text(self, piece: str) -> None:
        if self._after_call:
            piece = piece.lstrip(BLANKS)
            self._after_call = not piece
        body = piece.rstrip(BLANKS)
        if body:
            for blank in self._blanks:
                self._add(Text, blank)
            self._blanks.clear()
            self._add(Text, body)
        if len(body) < len(piece):
            self._blanks.append(piece[len(body) :])

    def reasoning(self, piece: str) -> None:
        self._add(Reasoning, piece)

    def boundary(self) -> None:
        """Calls lie here: drops whitespace before and after."""
        self._blanks.clear()
        self._after_call = True

    def begin(self, name: str) -> None:
        """The next call."""
        self.boundary()
        self._close()
        self._muted = self._calls > 0 and not self._parallel
        if not self._muted:
            self._deltas.append(CallBegun(self._calls, self._new_id(), name))
            self._calls += 1

    def arguments(self, piece: str) -> None:
        """More of the arguments of the call that was begun last."""
        if not self._muted:
            self._add(CallArguments, piece)

    def finish(self) -> None:
        """The answer is over: whitespace at its end is text."""
        for blank in self._blanks:
            self._add(Text, blank)
        self._blanks.clear()

    def take(self) -> list[Delta]:
        """What came since the last time."""
        self._close()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _add(self, kind: type[Text] | type[Reasoning] | type[CallArguments], piece: str) -> None:
        if not piece:
            return
        if kind is not self._kind:
            self._close()
            self._kind = kind
        self._pieces.append(piece)

    def _close(self) -> None:
        if self._kind is None:
            return
        text = "".join(self._pieces)
        if self._kind is CallArguments:
            self._deltas.append(CallArguments(self._calls - 1, text))
        else:
            self._deltas.append(Text(text) if self._kind is Text else Reasoning(text))
        self._kind = None
        self._pieces.clear()
