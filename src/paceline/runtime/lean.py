"""Imports structlog and nats-py without what they take along wherever it is installed. A service imports this first.

nats-py imports aiohttp for websockets, and with it every certificate that this machine trusts; structlog imports rich
for terminals. Nobody uses either here, and both together are half of what a worker imports before it starts.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Imports inside find none of `modules`, unless they were imported before."""
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import fail
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with without("aiohttp", "rich"):
    import nats.aio.client
    import structlog.dev

__all__ = ["nats", "structlog"]
