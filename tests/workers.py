"""Prefill and decode workers on the fake engine, and a gateway's end of their events."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from paceline.bus import rpc
from paceline.bus.interface import Bus, Delivery
from paceline.bus.memory import MemoryBroker
from paceline.contracts import subjects
from paceline.contracts.frames import decode_frame, is_frame
from paceline.contracts.hashing import tenant_salt
from paceline.contracts.messages import (
    Confirm,
    Done,
    Event,
    Failed,
    Generate,
    KvSource,
    LocalPrefill,
    Prefill,
    RemotePrefill,
    Sampling,
    Started,
    Work,
)
from paceline.decode.service import DecodeService
from paceline.decode.settings import Settings as DecodeSettings
from paceline.drafter.service import DrafterService
from paceline.drafter.settings import Settings as DrafterSettings
from paceline.engine.fake import FakeEngine
from paceline.engine.interface import Engine
from paceline.engine.registry import EngineName, open_engine
from paceline.kvstore.service import KvStoreService
from paceline.kvstore.settings import Settings as KvStoreSettings
from paceline.model.config import Span
from paceline.model.files import ModelFiles
from paceline.prefill.service import PrefillService
from paceline.prefill.settings import Settings as PrefillSettings
from tests.helpers import serving, until

GATEWAY = "gw-test"
PAGES = 64
PAGE_BYTES = 64 * 2 * 8 * 4


@dataclass
class Answer:
    """Everything that workers published about one request."""

    tokens: dict[int, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def all(self) -> list[int]:
        assert sorted(self.tokens) == list(range(len(self.tokens)))
        return [self.tokens[i] for i in range(len(self.tokens))]

    @property
    def started(self) -> Started:
        (event,) = (e for e in self.events if isinstance(e, Started))
        return event

    @property
    def end(self) -> Done | Failed | None:
        ends = [e for e in self.events if isinstance(e, Done | Failed)]
        assert len(ends) < 2, f"ended twice: {ends}"
        return ends[0] if ends else None


class Mesh:
    """Workers by role, and the answers that arrive for `GATEWAY`."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.prefill: PrefillService
        self.decode: DecodeService
        self.kvstore: KvStoreService
        self.drafter: DrafterService
        self.answers: dict[str, Answer] = {}
        self.frames: list[bytes] = []

    def hear(self, delivery: Delivery) -> None:
        if is_frame(delivery.data):
            self.frames.append(delivery.data)
            for entry in decode_frame(delivery.data):
                answer = self.answers.setdefault(entry.request_id, Answer())
                answer.tokens.update(enumerate(entry.tokens, entry.index))
        else:
            event = subjects.decode_event(delivery.data)
            self.answers.setdefault(event.request_id, Answer()).events.append(event)

    async def ask(
        self, work: Work, *, remote: bool = True, transfer_id: str | None = None, draft: bool = True
    ) -> Answer:
        """Dispatch to both legs as a gateway does, without waiting for the end."""
        answer = self.answers.setdefault(work.request_id, Answer())
        source: KvSource = LocalPrefill()
        calls: list[Any] = []
        if remote:
            identity = self.prefill.context.identity
            transfer_id = transfer_id or secrets.token_hex(16)
            source = RemotePrefill(
                worker=identity.worker, incarnation=identity.incarnation, transfer_id=transfer_id
            )
            message = Prefill(work=work, transfer_id=transfer_id)
            calls.append(rpc.call(self.bus, subjects.PREFILL, "prefill", identity.worker, message))
        generate = Generate(work=work, source=source, draft=draft)
        calls.append(
            rpc.call(self.bus, subjects.GENERATE, "decode", self.decode.context.identity.worker, generate)
        )
        await asyncio.gather(*calls)
        return answer

    async def finish(self, work: Work, **kwargs: Any) -> Answer:
        """Ask, and wait for the terminal event."""
        answer = await self.ask(work, **kwargs)
        await until(lambda: answer.end is not None)
        return answer

    async def idle(self) -> None:
        """Wait until both workers hold nothing, having confirmed every answer."""
        for request_id in self.answers:
            for service in self.workers:
                role, worker = service.context.identity.role, service.context.identity.worker
                confirm = Confirm(request_id=request_id, attempt=99)
                await rpc.call(self.bus, subjects.CONFIRM, role, worker, confirm)
        await until(lambda: all(_zero(s) for s in self.workers))

    @property
    def workers(self) -> list[PrefillService | DecodeService]:
        return [s for s in (getattr(self, "prefill", None), getattr(self, "decode", None)) if s is not None]


def _zero(service: PrefillService | DecodeService) -> bool:
    load = service.load()
    return (load.running, load.waiting, load.pages_used, load.leases, load.tasks) == (0, 0, 0, 0, 0)


@contextlib.asynccontextmanager
async def mesh(
    broker: MemoryBroker,
    run_dir: Path,
    *,
    kvstore: bool = False,
    drafter: bool = False,
    step_s: float = 0.0,
    pages: int = PAGES,
    span: Span | None = None,
    decode: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[Mesh]:
    """A prefill and a decode worker, ready; `decode` are settings of the latter alone.

    With a `span` their engine has a second layer that sees only that.
    """
    common: dict[str, Any] = {
        "run_dir": run_dir,
        "kv_bytes": pages * PAGE_BYTES,
        "engine": "fake",
        "fake_step_s": step_s,
        **settings,
    }
    async with AsyncExitStack() as stack:
        stack.enter_context(patch("paceline.worker.host.open_engine", partial(_fake_engine, span)))
        bus = broker.client()
        stack.push_async_callback(bus.close)
        built = Mesh(bus)
        await bus.subscribe(subjects.events(GATEWAY), built.hear)
        if drafter:
            built.drafter = await stack.enter_async_context(
                serving(broker.client(), "drafter", lambda c: DrafterService(c, DrafterSettings()))
            )
        if kvstore:
            built.kvstore = await stack.enter_async_context(
                serving(
                    broker.client(),
                    "kvstore",
                    lambda c: KvStoreService(
                        c, KvStoreSettings(run_dir=run_dir, kvstore_bytes=PAGES * PAGE_BYTES)
                    ),
                )
            )
        built.prefill = await stack.enter_async_context(
            serving(broker.client(), "prefill", lambda c: PrefillService(c, PrefillSettings(**common)))
        )
        built.decode = await stack.enter_async_context(
            serving(
                broker.client(), "decode", lambda c: DecodeService(c, DecodeSettings(**common | dict(decode)))
            )
        )
        yield built


def _fake_engine(span: Span | None, name: EngineName, files: ModelFiles | None, **options: Any) -> Engine:
    if name != "fake" or span is None:
        return open_engine(name, files, **options)
    return FakeEngine(base_s=options["step_s"], span=span)


def make_work(
    prompt: list[int], *, max_tokens: int = 8, attempt: int = 1, request_id: str | None = None, **kwargs: Any
) -> Work:
    sampling = {"max_tokens": max_tokens, "temperature": 0.0, **kwargs.pop("sampling", {})}
    return Work(
        request_id=request_id or secrets.token_hex(16),
        attempt=attempt,
        gateway=GATEWAY,
        tenant="a",
        salt=tenant_salt("a"),
        prompt=prompt,
        sampling=Sampling(**sampling),
        deadline=time.time() + 30,
        **kwargs,
    )
