"""Quantizing that is killed, runs out of disk or is continued with something else."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.contracts.errors import InvalidRequest, Unavailable
from paceline.quantize.manifest import claim
from paceline.quantize.options import Options
from paceline.quantize.run import quantize
from tests.unit.quantize.checkpoints import contents, dense_tensors, ignore, save

OPTIONS = Options("int4", shard_bytes=1_000_000)

# Dies in the middle of whatever its threads do when a part of the source is done.
CHILD = """
import os, signal, sys
from pathlib import Path
from paceline.quantize.options import Options
from paceline.quantize.run import quantize

def progress(done, total):
    if done >= float(sys.argv[3]) * total:
        os.kill(os.getpid(), signal.SIGKILL)

quantize(Path(sys.argv[1]), Path(sys.argv[2]), Options("int4", shard_bytes=1_000_000), progress)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 MB, which become five files."""
    return save(tmp_path_factory.mktemp("resume") / "source", dense_tensors(40))


@pytest.fixture(scope="module")
def whole(source: Path) -> dict[str, bytes]:
    """What is made of it without an interruption."""
    out = source.with_name("whole")
    quantize(source, out, OPTIONS, ignore)
    return contents(out)


def shards(out: Path) -> dict[str, tuple[int, int]]:
    """Identity of each finished shard: a rewritten one has another inode or time."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in out.glob("*.safetensors")}


@pytest.mark.parametrize(("at", "finished"), [(0.05, 0), (0.5, 2), (1.0, 4)])
def test_a_killed_process_is_continued(
    at: float, finished: int, source: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    child = subprocess.run([sys.executable, "-c", CHILD, str(source), str(out), str(at)], check=False)
    assert child.returncode == -signal.SIGKILL
    before = shards(out)
    assert len(before) == finished
    assert not (out / "model.safetensors.index.json").exists()
    heard: list[int] = []
    quantize(source, out, OPTIONS, lambda done, total: heard.append(done))
    assert shards(out).items() >= before.items()
    assert contents(out) == whole
    if finished:
        # What is done already counts from the first report on.
        assert heard[0] > 0.15 * finished * heard[-1]


@pytest.mark.parametrize("lost", ["model.safetensors.index.json", "config.json", "tokenizer.json"])
def test_files_beside_the_shards_are_made_again(
    lost: str, source: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(source.with_name("whole"), out)
    (out / lost).unlink()
    before = shards(out)
    quantize(source, out, OPTIONS, ignore)
    assert contents(out) == whole
    assert shards(out) == before


def test_a_finished_checkpoint_tells_its_report_again(source: Path, whole: dict[str, bytes]) -> None:
    out = source.with_name("again")
    first = quantize(source, out, OPTIONS, ignore)
    before = shards(out)
    assert quantize(source, out, OPTIONS, ignore) == first
    assert shards(out) == before


def test_a_full_disk_leaves_what_can_be_continued(
    source: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    reserve, calls = os.posix_fallocate, 0

    def full_at_the_third(descriptor: int, offset: int, length: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(descriptor, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full_at_the_third)
        with pytest.raises(Unavailable, match="the disk is full; the same command continues"):
            quantize(source, out, OPTIONS, ignore)
    assert len(shards(out)) == 2
    assert not list(out.rglob("*.part"))
    quantize(source, out, OPTIONS, ignore)
    assert contents(out) == whole


def test_too_little_space_is_seen_before_anything_is_done(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(Unavailable, match=r"0\.0 GB are needed and 0\.0 GB free"):
        quantize(source, tmp_path / "out", OPTIONS, ignore)
    assert not shards(tmp_path / "out")


def test_other_options_do_not_continue(source: Path, whole: dict[str, bytes]) -> None:
    out = source.with_name("whole")
    with pytest.raises(InvalidRequest, match="begun with other options"):
        quantize(source, out, Options("int4", group=64, shard_bytes=1_000_000), ignore)
    assert contents(out) == whole


def test_other_options_are_named_as_they_are_typed(tmp_path: Path) -> None:
    directory = tmp_path / "out" / ".quantize"
    directory.mkdir(parents=True)
    claim(directory, Options("fp8", keep=("lm_head", "*.0.*"), experts_only=True), "source")
    with pytest.raises(InvalidRequest) as refused:
        claim(directory, OPTIONS, "source")
    typed = "--to fp8 --group 32 --fp8 block --keep lm_head --keep '*.0.*' --experts-only --shard-gb 5.0"
    assert f"was begun with other options: give {typed}, remove it or" in str(refused.value)


@pytest.mark.parametrize("changed", ["weights", "config"])
def test_a_changed_source_does_not_continue(
    changed: str, source: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    ours = tmp_path / "source"
    shutil.copytree(source, ours)
    out = tmp_path / "out"
    shutil.copytree(source.with_name("whole"), out)
    quantize(ours, out, OPTIONS, ignore)
    if changed == "weights":
        path = ours / "part-0.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
    else:
        (ours / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(InvalidRequest, match="another source, or this one has changed"):
        quantize(ours, out, OPTIONS, ignore)
    assert contents(out) == whole


def test_a_directory_of_something_else_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidRequest, match="is not empty, and was not begun"):
        quantize(source, tmp_path, OPTIONS, ignore)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("below", ["", "/out"])
def test_where_no_directory_can_be(below: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"file.* cannot be begun: .*Not a directory"):
        quantize(source, Path(f"{tmp_path}/file{below}"), OPTIONS, ignore)


def test_two_processes_do_not_write_the_same(source: Path, whole: dict[str, bytes]) -> None:
    out = source.with_name("whole")
    descriptor = os.open(out / ".quantize", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(InvalidRequest, match="another process writes"):
            quantize(source, out, OPTIONS, ignore)
    finally:
        os.close(descriptor)
