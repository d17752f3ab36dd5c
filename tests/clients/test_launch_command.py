"""`paceline launch` with an agent that is really there."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.clients.cases import TEXT, prompt
from tests.clients.installed import Installed
from tests.clients.proxy import Proxy


@pytest.mark.slow
async def test_an_agent_runs_against_the_mesh_and_leaves_nothing_behind(
    installed: Installed, home: Path, tmp_path: Path, proxy: Proxy
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {
        "PATH": f"{installed.node_bin}:{os.environ['PATH']}",
        "HOME": str(home),
        "TMPDIR": str(temporary),
    }
    agent = ("codex", "--base-url", proxy.url, "--", "exec", "--skip-git-repo-check", prompt("codex", "text"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "paceline.cli", "launch", *agent),
        cwd=tmp_path,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert TEXT in output.decode()
    assert list(temporary.iterdir()) == []
    assert not (home / ".codex").exists()
