"""The directory of a run disappears with the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from paceline.cli import runfile
from paceline.cli.rundir import RunDir

# Makes a run directory with one child that holds the lifeline, and waits to be killed.
RUN = """
import asyncio, sys
from pathlib import Path
from paceline.cli.rundir import RunDir

async def main():
    run_dir = await RunDir.create(link=Path(sys.argv[1]))
    (run_dir.path / "a.sock").touch()
    Path(sys.argv[1]).symlink_to(run_dir.path / "run.json")
    child = await asyncio.create_subprocess_exec("sleep", "60", pass_fds=[run_dir.lifeline])
    print(run_dir.path, child.pid, flush=True)
    await child.wait()

asyncio.run(main())
"""


def wait_until_gone(path: Path) -> None:
    deadline = time.monotonic() + 10
    while path.exists():
        assert time.monotonic() < deadline, f"{path} stayed"
        time.sleep(0.01)


async def test_close_removes_the_directory_and_the_link(tmp_path: Path) -> None:
    link = tmp_path / "run.json"
    run_dir = await RunDir.create(link=link)
    assert run_dir.path.stat().st_mode & 0o777 == 0o700
    (run_dir.path / "deeper").mkdir()
    link.symlink_to(run_dir.path / "run.json")
    await run_dir.close()
    assert not run_dir.path.exists()
    assert not link.is_symlink()


async def test_close_leaves_the_link_of_a_later_run(tmp_path: Path) -> None:
    link = tmp_path / "run.json"
    run_dir = await RunDir.create(link=link)
    link.symlink_to(tmp_path / "other" / "run.json")
    await run_dir.close()
    assert link.is_symlink()


async def test_socket_paths_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    monkeypatch.setenv("TMPDIR", str(deep))
    run_dir = await RunDir.create(link=tmp_path / "run.json")
    await run_dir.close()
    # A worker id has up to 48 characters.
    assert len(f"{run_dir.path}/{'w' * 48}.sock") <= 107


def test_kill_9_removes_the_directory_once_the_last_child_is_gone(tmp_path: Path) -> None:
    link = tmp_path / "run.json"
    process = subprocess.Popen([sys.executable, "-c", RUN, link], stdout=subprocess.PIPE)
    assert process.stdout
    with process.stdout:
        path, child = process.stdout.readline().decode().split()
    process.kill()
    process.wait()
    assert Path(path, "a.sock").exists(), "removed under a child that still used it"
    os.kill(int(child), signal.SIGKILL)
    wait_until_gone(Path(path))
    assert not link.is_symlink()


def test_facts_of_a_run_are_read_until_its_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert runfile.read(9000) is None
    info = runfile.RunInfo(
        pid=os.getpid(),
        port=9000,
        base_url="http://127.0.0.1:9000/v1",
        nats_url="nats://t@127.0.0.1:1",
        model="m",
        workers=["decode-0"],
        restarts={"decode-0": 1},
    )
    runfile.write(tmp_path, info)
    assert runfile.read(9000) == info
    gone = subprocess.Popen(["true"])
    gone.wait()
    runfile.write(tmp_path, msgspec.structs.replace(info, pid=gone.pid))
    assert runfile.read(9000) is None
