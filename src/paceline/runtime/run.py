"""The main loop of every service."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import uvloop

from paceline.bus.nats import NatsBus
from paceline.contracts.errors import InvalidRequest, PacelineError
from paceline.contracts.messages import Role
from paceline.runtime.config import read
from paceline.runtime.context import Context
from paceline.runtime.identity import Identity, new_identity
from paceline.runtime.life import finishes_before, live
from paceline.runtime.service import Service
from paceline.telemetry import logs, traces

__all__ = ["Service", "run"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Settings:
    """What every process reads from PACELINE_*. `drain_s` bounds how long running work may keep a worker."""

    nats_url: str = "nats://127.0.0.1:4222"
    worker: str | None = None
    log_level: logs.LogLevel = "info"
    log_format: logs.LogFormat = "json"
    drain_s: float = 30.0


def run(role: Role, description: str, build: Callable[[Context], Service]) -> None:
    """Be a worker of `role` until SIGTERM, SIGINT or a drain request; a second signal ends the process at once.

    Exits with 0 after a drain, with 1 and a line that says why when it could not start (with `EX_CONFIG` when it never
    can, because of a setting), with 130 after two signals.
    """
    try:
        settings = read(Settings, os.environ)
        identity = new_identity(role, settings.worker)
    except InvalidRequest as e:
        sys.stderr.write(f"paceline {role}: {e.message}\n")
        sys.exit(os.EX_CONFIG)
    logs.configure(settings.log_level, settings.log_format, worker=identity.worker)
    traces.configure(f"paceline-{role}", instance=identity.worker)
    # Beside 5 ms of Python on the loop, an engine step of 3.3 ms takes 6.1 ms with the default, 3.9 ms with this.
    sys.setswitchinterval(0.0005)
    code = uvloop.run(_main(settings, identity, description, build))
    traces.shutdown()
    sys.exit(code)


async def _main(
    settings: Settings, identity: Identity, description: str, build: Callable[[Context], Service]
) -> int:
    leave = _leave_on_signals()
    shut_out = asyncio.Event()

    def on_closed() -> None:
        shut_out.set()
        leave.set()

    name = f"{identity.role} {identity.worker}"
    connecting = asyncio.create_task(NatsBus.connect(settings.nats_url, name=name, on_closed=on_closed))
    try:
        if await finishes_before(leave, connecting):
            bus = connecting.result()
            try:
                await live(identity, bus, description, build, leave, drain_s=settings.drain_s)
            finally:
                await bus.close()
    except PacelineError as e:
        log.error("service_failed", role=identity.role, error=e.message)
        return os.EX_CONFIG if isinstance(e, InvalidRequest) else 1
    except Exception:
        log.exception("service_failed", role=identity.role)
        return 1
    return 1 if shut_out.is_set() else 0


def _leave_on_signals() -> asyncio.Event:
    leave = asyncio.Event()
    seen: list[signal.Signals] = []

    def on_signal(sig: signal.Signals) -> None:
        if seen:
            os._exit(130)
        seen.append(sig)
        log.info("signal_received", signal=sig.name)
        leave.set()

    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, on_signal, sig)
    return leave
