"""The gateway service: HTTP on one side, the mesh on the other."""

import asyncio
import contextlib
import time

import structlog
from aiohttp import web

from paceline.contracts.errors import InvalidRequest, Unavailable
from paceline.contracts.messages import Load, ModelInfo
from paceline.gateway.admission import Admission
from paceline.gateway.app import build_app
from paceline.gateway.auth import Keys, check_exposure
from paceline.gateway.batches.service import Batches
from paceline.gateway.dispatch import Policy
from paceline.gateway.front import Front
from paceline.gateway.limits import Limits
from paceline.gateway.mesh import Mesh
from paceline.gateway.metrics import Metrics
from paceline.gateway.prices import parse_prices
from paceline.gateway.settings import Settings
from paceline.gateway.tokenizing import Tokenizing
from paceline.gateway.uploads import Uploads
from paceline.model.files import locate
from paceline.runtime.context import Context

log = structlog.get_logger(__name__)

# For handlers that a drain did not wait for.
_SHUTDOWN_S = 0.5
_LAST_WORDS_S = 2.0


class Gateway:
    """A `runtime.service.Service`. It has no endpoints on the bus but the common ones."""

    def __init__(self, context: Context, settings: Settings) -> None:
        """Raises `InvalidRequest` for settings that cannot work."""
        keys = Keys.of(settings.api_keys, settings.keys_file)
        check_exposure(settings.host, keys, allowed=settings.allow_unauthenticated)
        self._files = locate(settings.model)
        self._settings = settings
        self._metrics = Metrics(context.roster, context.identity.worker, self.load)
        self._admission = Admission(max_running=settings.max_running, max_waiting=settings.max_queue)
        self._uploads = Uploads(settings.max_uploads)
        self._mesh = Mesh(
            context,
            self._metrics,
            Policy(settings.handoff_min_tokens, settings.failover_wait_s),
        )
        self._front = Front(
            settings=settings,
            model=settings.model_name or self._files.name,
            created=int(time.time()),
            keys=keys,
            limits=Limits(),
            metrics=self._metrics,
            admission=self._admission,
            uploads=self._uploads,
            mesh=self._mesh,
            aliases=frozenset(filter(None, map(str.strip, settings.model_aliases.split(",")))),
            prices=parse_prices(settings.prices),
        )
        self._batches = Batches(context.bus, self._front)
        self._runner = web.AppRunner(
            build_app(self._front, self._batches),
            handle_signals=False,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=settings.idle_timeout_s,
            shutdown_timeout=_SHUTDOWN_S,
        )

    @property
    def port(self) -> int:
        """Where HTTP is served, from `start` on."""
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Answer HTTP at once, /health with 503 until the tokenizer is loaded."""
        await self._mesh.start()
        await self._runner.setup()
        host, port = self._settings.host, self._settings.port
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as e:
            raise InvalidRequest(
                f"cannot listen on {host}:{port}: {e.strerror or e}", param="PACELINE_PORT"
            ) from e
        log.info("http_listening", host=host, port=self.port)
        self._front.tokenizing = await Tokenizing.load(self._files, self._settings.tokenizer_threads)
        await self._batches.start()

    def load(self) -> Load:
        return Load(
            running=self._admission.running,
            waiting=self._admission.waiting + len(self._uploads),
            leases=self._mesh.reserved,
            tasks=self._mesh.tasks,
        )

    def model(self) -> ModelInfo | None:
        """None: a gateway makes no KV."""
        return None

    async def drain(self) -> None:
        """Answer new requests with 503, and wait for those that run."""
        self._front.draining = True
        await self._batches.drain()
        await self._admission.idle()

    async def close(self) -> None:
        # Whoever is still here gets an error as its end, not a connection that breaks.
        self._mesh.end_all(Unavailable("the server is shutting down"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._admission.idle()
        await self._batches.close()
        await self._runner.cleanup()
        await self._mesh.close()
        if self._front.tokenizing:
            self._front.tokenizing.close()
