"""Progress of a download: a bar in a terminal, a line for each tenth elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from paceline.cli.screen import Screen
from paceline.model.wheel import Progress as Report


@contextmanager
def download(screen: Screen, what: str) -> Iterator[Report]:
    """The function to call with (bytes done, bytes in all). Shows nothing until it is called."""
    if screen.console.is_terminal:
        with _bar(screen, what) as report:
            yield report
    else:
        yield Tenths(screen, what)


class Tenths:
    """Prints a line whenever another tenth is done."""

    def __init__(self, screen: Screen, what: str) -> None:
        self._screen = screen
        self._what = what
        self._shown = 0

    def __call__(self, done: int, total: int) -> None:
        """A download whose size is not known shows nothing."""
        tenths = 10 * done // total if total else 0
        if tenths > self._shown:
            self._shown = tenths
            self._screen.line(f"{self._what}: {10 * tenths}% of {total / 1e6:.0f} MB")


@contextmanager
def _bar(screen: Screen, what: str) -> Iterator[Report]:
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen.console) as progress:
        task = progress.add_task(what, total=None, visible=False)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total or None, visible=True)

        yield report
