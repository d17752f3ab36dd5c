"""Where the clients are installed: outside the checkout, once for each set of versions.

`python -m tests.clients.installed` installs what is missing; tests install nothing.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_INPUTS = ("package.json", "sdks.txt", "aider.txt")
_SDK_SOURCES = ("openai", "anthropic")


@dataclass(frozen=True)
class Installed:
    """The directories of one set of versions."""

    root: Path

    @property
    def node_bin(self) -> Path:
        return self.root / "node_modules" / ".bin"

    @property
    def sdks(self) -> Path:
        """The virtual environment of the SDKs."""
        return self.root / "sdks"

    @property
    def aider(self) -> Path:
        """Its own virtual environment, as it pins what others want newer."""
        return self.root / "aider"

    @property
    def complete(self) -> bool:
        return self._stamp.is_file()

    @property
    def _stamp(self) -> Path:
        return self.root / "complete"

    def source(self, package: str) -> Path:
        """The unpacked source distribution of an SDK, with its tests."""
        return self.root / "sources" / package

    def install(self) -> None:
        """From npm's and Python's registries, at the versions that the files beside this one name."""
        self.root.mkdir(parents=True, exist_ok=True)
        shutil.copy(_HERE / "package.json", self.root)
        _run(
            "npm",
            "install",
            "--no-package-lock",
            "--no-audit",
            "--no-fund",
            "--loglevel",
            "error",
            cwd=self.root,
        )
        _environment(self.sdks, _HERE / "sdks.txt")
        _environment(self.aider, _HERE / "aider.txt")
        pins = dict(line.split("==") for line in (_HERE / "sdks.txt").read_text().split())
        for package in _SDK_SOURCES:
            self._fetch_source(package, pins[package])
        self._stamp.touch()

    def _fetch_source(self, package: str, version: str) -> None:
        archives = self.root / "archives"
        pip = (str(self.sdks / "bin" / "python"), "-m", "pip", "--quiet", "download")
        _run(*pip, "--no-binary", package, "--no-deps", "--dest", str(archives), f"{package}=={version}")
        with tarfile.open(archives / f"{package}-{version}.tar.gz") as archive:
            archive.extractall(archives, filter="data")
        shutil.rmtree(self.source(package), ignore_errors=True)
        self.source(package).parent.mkdir(exist_ok=True)
        (archives / f"{package}-{version}").rename(self.source(package))


def installed() -> Installed:
    """For the versions of this checkout; whether they are there is for the caller to ask."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(b"\0".join((_HERE / name).read_bytes() for name in _INPUTS)).hexdigest()
    return Installed(cache / "paceline" / "clients" / digest[:16])


def _environment(path: Path, requirements: Path) -> None:
    venv.create(path, with_pip=True, clear=True)
    pip = (str(path / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    _run(*pip, "--requirement", str(requirements))


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, cwd=cwd, check=True)


def main() -> None:
    found = installed()
    if not found.complete:
        sys.stdout.write(f"Installing the clients into {found.root}\n")
        found.install()


if __name__ == "__main__":
    main()
