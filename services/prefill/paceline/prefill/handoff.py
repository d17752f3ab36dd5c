"""The prefill side of one handoff: pages leave for the decode worker as they are computed."""

import asyncio
import time
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor

import structlog

from paceline.bus import rpc
from paceline.contracts import subjects
from paceline.contracts.errors import InvalidRequest, PacelineError, Unavailable
from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.contracts.messages import Admit, Commit, FinishReason, PageRef, Withdraw
from paceline.engine.holdings import Place, places_behind
from paceline.prefill.converters import Convert, Converters
from paceline.runtime.context import Context
from paceline.transport.interface import RemotePages
from paceline.worker.attempts import Attempt
from paceline.worker.host import EngineHost
from paceline.worker.loans import digest

log = structlog.get_logger(__name__)

ADMIT_S = 30.0
"""How long computed pages are parked for a decode worker that does not admit them."""

COMMIT_S = 5.0


class Handoff:
    """Pushes the pages of one attempt. `run` ends when decode has them, or raises why it cannot."""

    _convert: Convert  # from `admit` on

    def __init__(
        self,
        context: Context,
        host: EngineHost,
        copier: ThreadPoolExecutor,
        converters: Converters,
        attempt: Attempt,
        transfer_id: str,
    ) -> None:
        self.attempt = attempt
        self.transfer_id = transfer_id
        self._context = context
        self._host = host
        self._copier = copier
        self._converters = converters
        self._admit: asyncio.Future[Admit] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._computed = 0
        self._first_token: int | None = None
        self._finish_reason: FinishReason | None = None
        self._sampled_at = 0.0
        self._writing: asyncio.Future[list[bytes]] | None = None

    @property
    def decode_worker(self) -> str | None:
        """Who admitted, if anybody has."""
        return self._admit.result().worker if self._admit.done() and not self._admit.cancelled() else None

    def admit(self, message: Admit) -> None:
        """Decode has room. A repeated message changes nothing. Raises `InvalidRequest` for pages of another model."""
        if not self._admit.done():
            self._convert = self._converters.towards(self._host.profile, message.kv)
            self._admit.set_result(message)
            self._changed.set()

    def progress(self, computed: int, first_token: int | None, finish_reason: FinishReason | None) -> None:
        """`computed` positions have KV; with `first_token` that is the whole prompt."""
        self._computed = computed
        if first_token is not None:
            self._first_token, self._finish_reason, self._sampled_at = first_token, finish_reason, time.time()
        self._changed.set()

    async def run(self) -> None:
        """Push until everything is committed. Raises `PacelineError`."""
        admit = await self._admitted()
        places = self._places(admit)
        remote = await self._host.transport.connect(admit.transfer)
        digests: list[bytes] = []
        while True:
            sent = len(digests)
            ready = bisect_left(places, self._ready_pages(), key=lambda place: place[1])
            if ready > sent:
                digests += await self._push(remote, admit.pages[sent:ready], places[sent:ready])
            elif self._first_token is not None:
                break
            else:
                await self._changed.wait()
                self._changed.clear()
        await self._commit(admit, digests)

    async def stop(self) -> None:
        """Wait until no byte of this handoff can still land. Comes after `run` was cancelled."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            self._writing.exception()  # nobody else looks at it, which asyncio would complain of

    async def withdraw(self, error: PacelineError) -> None:
        """Tell decode that nothing will come."""
        if self.decode_worker is None:
            return
        await self.stop()
        message = Withdraw(transfer_id=self.transfer_id, code=error.code, message=error.message)
        try:
            await rpc.insist(self._context.bus, subjects.WITHDRAW, "decode", self.decode_worker, message)
        except PacelineError as unheard:
            log.info("withdraw_unheard", transfer_id=self.transfer_id, error=unheard.message)

    async def _admitted(self) -> Admit:
        """Wait as long as the prompt computes, and `ADMIT_S` longer."""
        while not self._admit.done():
            timeout = ADMIT_S if self._first_token is not None else None
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                raise Unavailable(f"no decode worker admitted the handoff within {ADMIT_S:g} s") from None
            self._changed.clear()
        return self._admit.result()

    def _places(self, admit: Admit) -> list[Place]:
        """Where each page of `admit` belongs. Raises `InvalidRequest` when decode asks for others."""
        work = self.attempt.work
        places = places_behind(self._host.groups, admit.resident, len(work.prompt) + len(work.output))
        if len(places) != len(admit.pages):
            raise InvalidRequest(f"{len(places)} pages are to be handed over, not {len(admit.pages)}")
        return places

    def _ready_pages(self) -> int:
        """Pages of the sequence whose content is final: full ones, and the last one when the prompt is done."""
        return self._computed // PAGE_TOKENS if self._first_token is None else pages_for(self._computed)

    async def _push(self, remote: RemotePages, refs: list[PageRef], places: list[Place]) -> list[bytes]:
        # Decode needs none of the pages that the prompt gives back on its way, so that these stay until the end.
        held = self.attempt.sequence.holdings.pages
        pages = [int(held[place]) for place in places]
        await self._host.export_pages(pages)
        own = [self._host.arena.pages[page] for page in pages]

        def copy() -> list[bytes]:
            groups = [group for group, _ in places]
            pages = [self._convert(group, page) for group, page in zip(groups, own, strict=True)]
            remote.write(refs, pages)
            return [digest(page.data) for page in pages]

        self._writing = asyncio.wrap_future(self._copier.submit(copy))
        # Cancelling must not lose sight of the copy, which goes on in its thread: `stop` waits for it.
        return await asyncio.shield(self._writing)

    async def _commit(self, admit: Admit, digests: list[bytes]) -> None:
        if self._first_token is None:
            raise ValueError("a handoff is committed before its first token")
        commit = Commit(
            transfer_id=self.transfer_id,
            tokens=self._computed,
            first_token=self._first_token,
            sampled_at=self._sampled_at,
            pages=admit.pages[: len(digests)],
            digests=digests,
            finish_reason=self._finish_reason,
        )
        await rpc.insist(self._context.bus, subjects.COMMIT, "decode", admit.worker, commit, timeout=COMMIT_S)
