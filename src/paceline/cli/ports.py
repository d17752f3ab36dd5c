"""The gateway's port, checked before anything is started."""

import errno
import socket


class PortTaken(Exception):
    """Another process listens on the port already."""


def reserve(host: str, port: int) -> int:
    """The port to serve on: `port`, or a free one for 0. Raises `PortTaken`, and `OSError` for a bad host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the gateway will bind: connections of an earlier run that linger in TIME_WAIT do not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # Binding alone succeeds beside a listener that set SO_REUSEADDR too.
            probe.listen(1)
        except OSError as e:
            if e.errno == errno.EADDRINUSE:
                raise PortTaken(f"{host}:{port} is taken") from e
            raise
        return int(probe.getsockname()[1])
