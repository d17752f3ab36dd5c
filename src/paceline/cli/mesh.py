"""One run of `paceline up`: its processes from the first start to the last exit."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass

from paceline.bus.nats import NatsBus
from paceline.cli import launch, runfile
from paceline.cli.example import curl
from paceline.cli.follow import follow, last_lines
from paceline.cli.nats_child import NatsChild
from paceline.cli.processes import Options, children
from paceline.cli.readiness import Readiness, healthy
from paceline.cli.rundir import RunDir
from paceline.cli.screen import Screen
from paceline.cli.supervisor import Child, Supervisor
from paceline.model.files import ModelFiles
from paceline.runtime.tasks import Tasks

# Services bound their own draining; this is for one that hangs.
_GRACE_S = 60.0
_LOG_TAIL = 20


@dataclass(frozen=True)
class Address:
    """Where the gateway listens, and the URL that reaches it from this machine."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://{host}:{self.port}"


class Mesh:
    """Runs until a signal drains it or a child is given up."""

    def __init__(
        self, options: Options, model: ModelFiles, address: Address, run_dir: RunDir, screen: Screen
    ) -> None:
        self._options = options
        self._model = model
        # What clients call it.
        self._name = os.environ.get("PACELINE_MODEL_NAME") or model.name
        self._address = address
        self._run_dir = run_dir
        self._screen = screen
        self._tasks = Tasks()
        self._over = asyncio.Event()
        self._status = 0
        self._supervisor = Supervisor(
            report=screen.line, on_restart=self._publish, on_given_up=self._given_up
        )
        state = runfile.state_dir(address.port)
        self._nats = NatsChild(state / "up.log", state / "jetstream")
        self._services: list[Child] = []
        self._bus: NatsBus | None = None

    async def run(self) -> int:
        """The exit status: 0 after a drain, 1 when a child was given up, 130 after a second signal."""
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, self._signalled)
        start = asyncio.create_task(self._start(), name="start")
        over = asyncio.create_task(self._over.wait(), name="over")
        try:
            with self._screen.busy("starting"):
                await asyncio.wait({start, over}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                self._greet()
            await over
        finally:
            start.cancel()
            over.cancel()
            await asyncio.wait({start, over})
            await self._end()
        return self._status

    async def _start(self) -> None:
        """Start everything; ends when requests are answered."""
        await self._nats.start()
        self._supervisor.keep(self._nats.child)
        shared = {
            "PACELINE_NATS_URL": self._nats.url,
            "PACELINE_RUN_DIR": str(self._run_dir.path),
            "PACELINE_MODEL": str(self._model.path),
            "PACELINE_MODEL_NAME": self._name,
            "PACELINE_HOST": self._address.host,
            "PACELINE_PORT": str(self._address.port),
        }
        for spec in children(self._options, shared):
            log = runfile.state_dir(self._address.port) / f"{spec.worker}.log"
            log.write_bytes(b"")
            command = launch.service(spec, log=log, lifeline=self._run_dir.lifeline)
            self._services.append(Child(spec.worker, log, command))
        self._show_logs()
        self._publish()
        readiness = Readiness(self._services, self._ready)
        self._bus = await NatsBus.connect(self._nats.url, name="paceline up")
        await readiness.start(self._bus)
        for child in self._services:
            self._supervisor.keep(child)
        await readiness.wait()
        await healthy(self._address.url)

    def _show_logs(self) -> None:
        everyone = [self._nats.child, *self._services]
        for child in everyone:
            self._screen.line(f"{child.name} logs to {child.log}")
        if self._options.verbose:
            width = max(len(child.name) for child in everyone)
            files = {child.name.ljust(width): child.log for child in everyone}
            self._tasks.spawn(follow(files, self._show_log_line), name="follow logs")

    def _show_log_line(self, name: str, line: str) -> None:
        self._screen.line(f"{name} | {line}", style="dim")

    def _ready(self, child: Child) -> None:
        self._screen.line(f"{child.name} is ready, {time.monotonic() - child.began:.1f} s after its start")

    def _greet(self) -> None:
        url = self._address.url
        self._screen.line(f"\nServing {self._name} at {url}/v1; Ctrl-C drains and stops. Try it:\n")
        self._screen.line(curl(url, self._name, with_key=bool(os.environ.get("PACELINE_API_KEYS"))))
        self._screen.line()

    def _publish(self) -> None:
        """Tell `paceline status` about this run."""
        everyone = [self._nats.child, *self._services]
        info = runfile.RunInfo(
            pid=os.getpid(),
            port=self._address.port,
            base_url=f"{self._address.url}/v1",
            nats_url=self._nats.url,
            model=self._name,
            workers=[child.name for child in self._services],
            restarts={child.name: child.restarts.count for child in everyone},
        )
        runfile.write(self._run_dir.path, info)

    def _given_up(self, child: Child) -> None:
        self._status = 1
        self._screen.error(f"{child.name} does not start; the end of {child.log}:")
        for line in last_lines(child.log, _LOG_TAIL):
            self._screen.error(f"  {line}")
        self._over.set()

    def _signalled(self) -> None:
        if self._over.is_set():
            self._status = 130
            self._supervisor.kill()
        else:
            self._screen.line("draining; another Ctrl-C kills")
            self._over.set()

    async def _end(self) -> None:
        """The gateway first, because its streams need everyone else."""
        gateway = [child for child in self._services if child.name.startswith("gateway")]
        workers = [child for child in self._services if child not in gateway]
        await self._supervisor.stop(gateway, _GRACE_S)
        await self._supervisor.stop(workers, _GRACE_S)
        if self._bus:
            await self._bus.close()
        await self._supervisor.stop([self._nats.child], _GRACE_S)
        await self._nats.close()
        await self._tasks.cancel_all()
