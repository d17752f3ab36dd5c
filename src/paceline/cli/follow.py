"""Shows log files while they grow."""

import asyncio
from collections.abc import Callable
from pathlib import Path

_POLL_S = 0.1


async def follow(files: dict[str, Path], show: Callable[[str, str], None]) -> None:
    """Call `show(name, line)` for each line that is appended to one of `files`, until cancelled."""
    tails = {name: Tail() for name in files}
    while True:
        for name, tail in tails.items():
            for line in tail.read(files[name]):
                show(name, line)
        await asyncio.sleep(_POLL_S)


class Tail:
    """Remembers how far a file was read, and the line that is not finished."""

    def __init__(self) -> None:
        self._offset = 0
        self._partial = b""

    def read(self, path: Path) -> list[str]:
        """The lines that were completed since the last call."""
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._offset)
            added = file.read()
        self._offset += len(added)
        *lines, self._partial = (self._partial + added).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a log, for an error message."""
    return path.read_text(errors="replace").splitlines()[-count:] if path.exists() else []
