"""What commands show: lines, and a spinner where there is a terminal."""

from contextlib import AbstractContextManager, nullcontext

from rich.console import Console

_CLOSED = 141
"""What shells tell of a program that SIGPIPE ended."""


class _Pipe(Console):
    """Ends quietly when nobody reads any more, as in `paceline plan ... | head`."""

    def on_broken_pipe(self) -> None:
        try:
            super().on_broken_pipe()
        except SystemExit as e:
            raise SystemExit(_CLOSED) from e


class Screen:
    """Plain lines that are never wrapped, coloured or interpreted, so that paths and commands can be copied."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _Pipe(highlight=False)
        if not self.console.is_terminal:
            # A file or a pipe has no width to keep to.
            self.console.width = 200

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print `text` as it is."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def error(self, text: str) -> None:
        """Print what went wrong on stderr."""
        Console(stderr=True).print(text, style="red", markup=False, highlight=False, soft_wrap=True)

    def busy(self, text: str) -> AbstractContextManager[object]:
        """A spinner beside `text` for the length of a `with` block; lines appear above it."""
        return self.console.status(text) if self.console.is_terminal else nullcontext()
