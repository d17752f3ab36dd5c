"""The native step as a shared library: compiled on this machine in seconds, at first use, and kept.

    python -m paceline.engine.cpu.build [level ...]     builds, by default for this machine; to prepare an image

A library lies in `cache_directory()` as <source>-<level>-<sources>-<compiler>-<content>.so, where the last three are
digests. The first two of these find it; the last one tells whether the file is whole, for loading a damaged library
ends the process. Its name thus says all that it was made from: nothing is ever outdated, and machines of several levels
may share a home directory.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from paceline.contracts.errors import InvalidRequest
from paceline.engine.cpu import levels
from paceline.engine.cpu.levels import Level

log = structlog.get_logger(__name__)

NATIVE = Path(__file__).parent / "native"
"""The sources. They lie in the wheel as they are."""

STEP = NATIVE / "step.cpp"
"""It stands for all sources of the engine: they are compiled side by side, each on a core, and become one library."""

# With contraction a compiler fuses a * b + c in one place and not in another, and a row depends on its batch.
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-std=c++17", "-fPIC", "-shared", "-pthread")

_SHOWN_LINES = 20


class NoCompiler(InvalidRequest):
    """There is no C++ compiler, nor a library that one has left."""


@dataclass(frozen=True)
class Compiler:
    """`version` is the first line of what `command --version` prints."""

    command: tuple[str, ...]
    version: str


def library(level: Level, source: Path = STEP, flags: Sequence[str] = (), cache: Path | None = None) -> Path:
    """The file of `source`, or of all of `NATIVE` for `STEP`, compiled for `level`; it is made when `cache` has none.

    `flags` come behind those of the level. Without a compiler, a library of the same sources by any compiler will do.
    Any number of processes may ask at once.

    Raises `NoCompiler`, or `InvalidRequest` when the compiler refuses or the cache cannot be written.
    """
    cache = cache or cache_directory()
    compiler = find_compiler()
    flags = (*FLAGS, *levels.FLAGS[level], *flags)
    stem = f"{source.stem}-{level}-{_digest(_inputs(source, flags))}"
    if compiler is None:
        if found := _find(cache, f"{stem}-*.so"):
            return found
        raise NoCompiler(
            f"the cpu engine is compiled at first use and found no C++ compiler: {_how_to_install()}"
        )
    stem += f"-{_digest([compiler.version.encode()])}"
    return _find(cache, f"{stem}-*.so") or _build(compiler, source, flags, cache, stem)


def cache_directory() -> Path:
    """Where libraries are kept: `$XDG_CACHE_HOME/paceline/native`, by default under `~/.cache`."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "paceline" / "native"


def find_compiler() -> Compiler | None:
    """$CXX, which must work when it is set, otherwise the first of c++, g++ and clang++ that does.

    Raises `InvalidRequest` when $CXX does not.
    """
    if chosen := os.environ.get("CXX"):
        if found := _try_compiler(shlex.split(chosen)):
            return found
        raise InvalidRequest(f"CXX={chosen} cannot be run: unset it, or name a C++ compiler")
    for name in ("c++", "g++", "clang++"):
        # Apple's are stubs, which fail until the tools are installed.
        if found := _try_compiler([name]):
            return found
    return None


def _try_compiler(command: list[str]) -> Compiler | None:
    if not command or shutil.which(command[0]) is None:
        return None
    answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not answer.stdout:
        return None
    return Compiler(tuple(command), answer.stdout.splitlines()[0])


def _how_to_install() -> str:
    if sys.platform == "darwin":
        return "xcode-select --install"
    for tool, command in (
        ("apt-get", "apt-get install g++"),
        ("dnf", "dnf install gcc-c++"),
        ("apk", "apk add g++"),
    ):
        if shutil.which(tool):
            return command
    return "install g++ or clang++"


def _units(source: Path) -> list[Path]:
    return sorted(NATIVE.glob("*.cpp")) if source == STEP else [source]


def _inputs(source: Path, flags: Sequence[str]) -> Iterable[bytes]:
    """All that a library depends on, but for its compiler."""
    yield platform.machine().encode()
    yield from (flag.encode() for flag in flags)
    for file in (*_units(source), *sorted(NATIVE.rglob("*.h"))):
        yield file.name.encode()
        yield file.read_bytes()


def _digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of `parts`, each behind its length, cut to 64 bits: enough to tell builds of one program apart."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]


def _find(cache: Path, pattern: str) -> Path | None:
    """A whole file of that name; damaged ones are removed, so that they are built again."""
    for path in sorted(cache.glob(pattern)):
        try:
            whole = path.stem.rpartition("-")[2] == _digest([path.read_bytes()])
            if whole:
                return path
            log.warning("native.damaged", path=str(path))
            path.unlink(missing_ok=True)
        except OSError as e:
            raise InvalidRequest(f"{path}: {e.strerror}; remove it, or set XDG_CACHE_HOME") from e
    return None


def _build(compiler: Compiler, source: Path, flags: Sequence[str], cache: Path, stem: str) -> Path:
    began = time.monotonic()
    log.info("native.compiling", source=source.name, compiler=compiler.version)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # Beside its final place, so that the rename is atomic.
        with tempfile.TemporaryDirectory(dir=cache, prefix=".building-") as directory:
            made = Path(directory) / "library.so"
            _compile(compiler, _units(source), flags, made)
            path = cache / f"{stem}-{_digest([made.read_bytes()])}.so"
            made.replace(path)
    except OSError as e:
        raise InvalidRequest(
            f"{cache} cannot hold what is compiled: {e.strerror}; XDG_CACHE_HOME names another"
        ) from e
    log.info("native.compiled", path=str(path), seconds=round(time.monotonic() - began, 1))
    return path


def _compile(compiler: Compiler, units: Sequence[Path], flags: Sequence[str], target: Path) -> None:
    """`target`, beside which objects are left."""
    command = [*compiler.command, *flags]
    objects = [target.parent / f"{unit.stem}.o" for unit in units]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = [
            [*command, f"-I{NATIVE}", "-c", str(unit), "-o", str(made)]
            for unit, made in zip(units, objects, strict=True)
        ]
        for _ in pool.map(lambda each: _run(compiler, each), commands):
            pass
    _run(compiler, [*command, *map(str, objects), "-o", str(target)])


def _run(compiler: Compiler, command: Sequence[str]) -> None:
    answer = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if answer.returncode != 0:
        lines = answer.stderr.splitlines()
        # The first error explains the rest, and warnings may come before it.
        first = next((i for i, line in enumerate(lines) if "error" in line), 0)
        shown = "\n".join(lines[first : first + _SHOWN_LINES])
        raise InvalidRequest(
            f"{compiler.version} cannot compile the cpu engine:\n{shown}\nIt ran: {shlex.join(command)}"
        )


def _main(names: Sequence[str]) -> int:
    if unknown := set(names) - set(levels.LEVELS):
        sys.stderr.write(
            f"no such level: {', '.join(sorted(unknown))}; there are {', '.join(levels.LEVELS)}\n"
        )
        return 2
    try:
        chosen = [level for level in levels.LEVELS if level in names] if names else [levels.detect()]
        for level in chosen:
            sys.stdout.write(f"{library(level)}\n")
    except InvalidRequest as e:
        sys.stderr.write(f"{e}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
