"""The gateway's port before it is bound."""

import socket

import pytest

from paceline.cli.ports import PortTaken, reserve


def test_a_taken_port_is_named() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port} is taken"):
            reserve("127.0.0.1", port)
    assert reserve("127.0.0.1", port) == port


def test_zero_is_any_free_port() -> None:
    assert reserve("127.0.0.1", 0) > 0
