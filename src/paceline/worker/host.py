"""A worker's engine with its pages: loads, plans memory, runs the thread, serves the arena."""

import asyncio
import os
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from paceline.contracts.errors import ContextTooLong
from paceline.contracts.messages import KvForm, Load, ModelInfo, Work
from paceline.engine.layout import KvDtype
from paceline.engine.pages import NoTags, PagePool, PageTags
from paceline.engine.plan import StepResult
from paceline.engine.profile import KvProfile
from paceline.engine.registry import open_engine
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.thread import EngineThread
from paceline.model.files import locate
from paceline.runtime.context import Context
from paceline.transport.arena import Arena
from paceline.transport.shm import ShmTransport
from paceline.worker.grammars import GrammarThread
from paceline.worker.intake import check
from paceline.worker.memory import free_memory, plan_pages
from paceline.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

_NICE = 5
"""How far an engine's threads, of which there is one for each core, stand back behind what is short: event loops here
and in other services. Where these share cores thread by thread, as in containers, nine of ten answers to /health beside
8 streams on two cores came within 6 and 26 ms with it, within 28 and 30 without (two runs). Where Linux shares them by
session first, it is the sessions of their own that `paceline up` gives to services, and this changes nothing."""


class EngineHost:
    """Everything below the messages. `thread`, `arena` and `transport` exist from `start` to `close`."""

    thread: EngineThread
    arena: Arena
    transport: ShmTransport

    def __init__(self, context: Context, settings: WorkerSettings) -> None:
        files = locate(settings.model) if settings.model else None
        self._settings = settings
        self._identity = context.identity
        self._name = settings.model_name or (files.name if files else "fake")
        self._engine = open_engine(
            settings.engine,
            files,
            dtype=settings.dtype,
            weights=settings.weights,
            kv_dtype=_kv_dtype(settings),
            device=settings.device,
            threads=settings.threads,
            step_s=settings.fake_step_s,
        )
        self._grammars = GrammarThread(files, self._engine.vocab, self._engine.eos_token_ids)
        self._started = False
        self._exits = AsyncExitStack()
        self.page_bytes = self._engine.layout.page_bytes
        self.groups = self._engine.layout.groups

    async def start(self, on_step: Callable[[StepResult], None]) -> None:
        """Load the weights, take the pages, and be ready for sequences."""
        began = time.monotonic()
        # Threads that an engine starts inherit the priority of the one that calls it.
        starter = ThreadPoolExecutor(1, "engine-start", os.nice, (_NICE,))
        self._exits.callback(starter.shutdown, wait=False)
        self._exits.callback(self._grammars.close)
        loop = asyncio.get_running_loop()
        vocabulary = self._grammars.load()
        await loop.run_in_executor(starter, self._engine.load, _log_progress())
        await vocabulary
        pages = plan_pages(
            self._engine.layout, self._settings.kv_bytes, free_memory(), self._engine.page_memory
        )
        self.arena = Arena.create(pages, self.page_bytes)
        self._exits.callback(self.arena.close)
        await loop.run_in_executor(starter, self._engine.bind, self.arena.pages)
        self._exits.callback(self._engine.close)
        tracker = PageTags(self.arena.tags) if self._settings.kv_integrity == "on" else NoTags()
        self._pool = PagePool(pages, tracker)
        limits = Limits(self._settings.step_tokens, self._settings.max_sequences)
        self._scheduler = Scheduler(
            self._pool, self.groups, vocab=self._engine.vocab, context=self._engine.context, limits=limits
        )
        self.thread = EngineThread(self._engine, self._scheduler, on_step)
        self.thread.start()
        self._exits.push_async_callback(self.thread.stop)
        await self.thread.call(lambda _: os.nice(_NICE))
        self.transport = ShmTransport(
            self.arena, Path(self._settings.run_dir), self._identity.worker, self._identity.incarnation
        )
        self._exits.push_async_callback(self.transport.close)
        await self.transport.start()
        self._started = True
        # Beside the first requests: a gigabyte takes longer than all else that a small model needs to start.
        starter.submit(self.arena.populate)
        log.info("engine_ready", model=self._name, pages=pages, seconds=round(time.monotonic() - began, 3))

    @property
    def profile(self) -> KvProfile:
        """Of its pages, from `start` on."""
        return self._engine.profile

    def kv_form(self) -> KvForm:
        """What others need to write pages of this worker."""
        profile = self.profile
        return KvForm(profile_id=profile.id, dtype=profile.dtype, scales=list(profile.scales))

    async def export_pages(self, pages: Items[int]) -> None:
        """Have in the arena what the engine wrote to `pages`, which the caller holds."""
        if not self._engine.in_place:
            await self.thread.call(lambda _: self._engine.export_pages(pages))

    def import_pages(self, pages: Items[int]) -> None:
        """Have the engine take over what others wrote to `pages` of the arena. For the engine thread, in the command
        that also lets sequences use them: between two commands they could become somebody else's."""
        self._engine.import_pages(pages)

    async def close(self) -> None:
        """Undo what `start` did, as far as it came."""
        await self._exits.aclose()

    def model(self) -> ModelInfo:
        return ModelInfo(
            name=self._name,
            # Only here is it known how many pages a sequence of the model needs.
            context=self._scheduler.room if self._started else self._engine.context,
            fingerprint=self._engine.fingerprint,
            kv_dtype=self._engine.kv_dtype,
            page_bytes=self.page_bytes,
            engine=self._engine.name,
        )

    def load(self) -> Load:
        """The engine's part of a beacon: racy reads of counters that only the engine thread changes."""
        if not self._started:
            return Load()
        pace = self.thread.pace
        return Load(
            running=self._scheduler.sequences - self._scheduler.waiting,
            waiting=self._scheduler.waiting,
            queued_tokens=self._scheduler.queued_tokens,
            pages_used=self._pool.used,
            pages_cached=self._pool.cached,
            pages_total=self._pool.total,
            tokens_per_s=pace.tokens_per_s,
            prefill_tokens_per_s=pace.prefill_tokens_per_s,
            step_s=pace.step_s,
        )

    def limit(self, work: Work) -> int:
        """Tokens, prompt included, at which the request ends with reason "length" if nothing else ends it."""
        return min(len(work.prompt) + work.sampling.max_tokens, self._engine.context)

    def new_sequence(self, work: Work, *, remote: bool = False, to_hand_over: bool = False) -> Sequence:
        """A sequence for `work`: whose pages come from a prefill worker, or that ends with its first token to be handed
        over, or that runs here from prompt to end.

        Raises `InvalidRequest`, or `ContextTooLong` when it could never run here, before anything is taken for it.
        """
        check(work, self._engine.vocab)
        tokens = work.prompt + work.output
        room = self._scheduler.room
        if len(tokens) >= room:
            raise ContextTooLong(
                f"this worker's maximum context length is {room} tokens, and {len(tokens)} are to be continued"
            )
        limit = min(self.limit(work), room)
        if to_hand_over:
            limit = min(limit, len(tokens) + 1)
        stop = frozenset(work.sampling.stop_token_ids)
        return Sequence(
            request_id=work.request_id,
            attempt=work.attempt,
            tokens=tokens,
            prompt_tokens=len(work.prompt),
            sampling=work.sampling,
            salt=work.salt,
            limit=limit,
            stop=stop if work.sampling.ignore_eos else stop | self._engine.eos_token_ids,
            arrival=time.monotonic(),
            remote=remote,
            hold=to_hand_over,
            groups=len(self.groups),
            early=to_hand_over,
            low_priority=work.low_priority,
        )

    async def constrain(self, sequence: Sequence) -> None:
        """Hold a new sequence to the grammar that its request names. Raises `InvalidRequest` when that cannot be."""
        if grammar := sequence.sampling.grammar:
            output = sequence.tokens[sequence.prompt_tokens :]
            sequence.constraint = await self._grammars.constraint(grammar, output)


def _kv_dtype(settings: WorkerSettings) -> KvDtype:
    if settings.kv_dtype != "auto":
        return settings.kv_dtype
    return "float32" if settings.dtype == "float32" else "bfloat16"


def _log_progress() -> Callable[[int, int], None]:
    """Logs each further quarter of the weights."""
    logged = 0

    def progress(done: int, total: int) -> None:
        nonlocal logged
        quarter = 4 * done // max(total, 1)
        if quarter > logged:
            logged = quarter
            log.info("weights_loading", done=done, total=total)

    return progress
