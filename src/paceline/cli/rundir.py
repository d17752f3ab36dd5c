"""The directory of one run: private, short, and gone when the run is, however it ends."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

# Unix socket paths end at 107 bytes; the sockets in the directory need up to 60.
_LONGEST = 47

# Reads until every process of the run has closed the other end, which a process cannot help doing when it dies.
# The link goes only while it still names this run: the next one may have replaced it.
_REAP = """
cat >/dev/null
[ "$(readlink -- "$2")" = "$1/run.json" ] && rm -f -- "$2"
rm -rf -- "$1"
"""


class RunDir:
    """A fresh 0700 directory and the process that removes it.

    `lifeline` is the write end of a pipe. Every process of the run inherits it; when the last of them is gone, even by
    SIGKILL, a shell in a session of its own reads the end of the pipe and removes `path` and `link`.
    """

    def __init__(self, path: Path, lifeline: int, reaper: asyncio.subprocess.Process) -> None:
        self.path = path
        self.lifeline = lifeline
        self._reaper = reaper

    @classmethod
    async def create(cls, *, link: Path) -> "RunDir":
        """`link` is where the run will point to its `run.json`, see `runfile`. Raises `OSError`."""
        path = Path(tempfile.mkdtemp(prefix="paceline-", dir=_base()))
        read, write = os.pipe()
        try:
            reaper = await asyncio.create_subprocess_exec(
                "/bin/sh",
                *("-c", _REAP, "paceline-reaper", str(path), str(link)),
                stdin=read,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        except OSError:
            os.close(write)
            shutil.rmtree(path)
            raise
        finally:
            os.close(read)
        return cls(path, write, reaper)

    async def close(self) -> None:
        """Wait until the directory is removed. Every child has to be gone."""
        os.close(self.lifeline)
        await self._reaper.wait()


def _base() -> Path:
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()):
        if base and len(base) <= _LONGEST - len("/paceline-12345678") and os.access(base, os.W_OK):
            return Path(base)
    return Path("/tmp")  # noqa: S108 - mkdtemp makes a private directory below it
