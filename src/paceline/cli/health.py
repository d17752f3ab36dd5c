"""`python -m paceline.cli.health <role>`: whether this container's service is ready; for container health checks.

Reads PACELINE_NATS_URL and PACELINE_WORKER like the service, and exits with 0 or 1. Imports nothing that a service
image lacks.
"""

import asyncio
import os
import sys

from paceline.bus.nats import NatsBus
from paceline.cli import survey
from paceline.contracts.errors import Unavailable

_TIMEOUT_S = 3.0


async def check(url: str, role: str, worker: str) -> bool:
    """Whether `worker` says on the bus at `url` that it is ready."""
    try:
        bus = await NatsBus.connect(url, name=f"health of {worker}", timeout=_TIMEOUT_S)
    except Unavailable:
        return False
    try:
        answer = await bus.request(f"$SRV.STATS.{role}.{worker}", b"", timeout=_TIMEOUT_S)
    except (Unavailable, TimeoutError):
        return False
    finally:
        await bus.close()
    return survey.read(answer.data).state == "ready"


def main() -> None:
    worker = os.environ["PACELINE_WORKER"]
    healthy = asyncio.run(check(os.environ["PACELINE_NATS_URL"], sys.argv[1], worker))
    sys.exit(0 if healthy else 1)


if __name__ == "__main__":
    main()
