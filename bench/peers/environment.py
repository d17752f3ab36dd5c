"""Where a peer is built: a directory of its own outside the checkout, filled once."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

CPU_TORCH = "torch==2.13.0+cpu"
"""The local version label keeps pip from the CUDA build, which it would prefer and which is gigabytes."""

_COMPLETE = "complete"
_LOG_TAIL = 15


class PeerUnavailable(RuntimeError):
    """This machine cannot build or run the peer; the message says why."""


def directory(name: str) -> Path:
    """`$XDG_CACHE_HOME/paceline/peers/<name>`, by default under `~/.cache`. `name` holds the version."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(cache).expanduser() / "paceline" / "peers" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def building(target: Path) -> Iterator[bool]:
    """Whether `target` is still to be filled; it counts as complete when the block ends without an error.

    Another process that wants it waits. What an interrupted build left stays, for `make`-like tools to go on from.
    """
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = target / _COMPLETE
        missing = not stamp.exists()
        yield missing
        stamp.touch()


def run(what: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run one step of a build, with its output in `log`. Raises `PeerUnavailable` with the end of it."""
    say(f"{what} (log: {log})")
    began = time.monotonic()
    try:
        with log.open("w") as output:
            subprocess.run(
                [str(part) for part in command],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )
    except FileNotFoundError as e:
        raise PeerUnavailable(f"{what} needs the program {command[0]}, which is not installed") from e
    except subprocess.CalledProcessError as e:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL:])
        raise PeerUnavailable(f"{what} failed with status {e.returncode}; {log} ends in\n{tail}") from e
    say(f"{what}: {time.monotonic() - began:.0f} s")


def python_environment(name: str, requirements: Sequence[str], unwanted: Sequence[str]) -> Path:
    """The Python of a virtual environment with `requirements`, from which `unwanted` are removed again.

    A package is unwanted that pip brings as a dependency and that breaks or disturbs: torchvision's wheel on PyPI, for
    example, is built against CUDA and fails at import beside a CPU torch.
    """
    home = directory(name)
    python = home / "venv" / "bin" / "python"
    with building(home) as missing:
        if missing:
            run(
                f"{name}: making a virtual environment",
                [sys.executable, "-m", "venv", home / "venv"],
                home / "venv.log",
            )
            try:
                run(
                    f"{name}: installing {', '.join(requirements)}",
                    [python, "-m", "pip", "install", *requirements, CPU_TORCH],
                    home / "install.log",
                )
            except PeerUnavailable as e:
                raise PeerUnavailable(
                    f"{e}\nIf {CPU_TORCH} was not found, name an index of CPU builds in PIP_EXTRA_INDEX_URL."
                ) from e
            run(
                f"{name}: removing {', '.join(unwanted)}",
                [python, "-m", "pip", "uninstall", "--yes", *unwanted],
                home / "remove.log",
            )
    return python


def say(text: str) -> None:
    """Progress, kept apart from a table or JSON on standard output."""
    print(f"peers: {text}", file=sys.stderr, flush=True)
