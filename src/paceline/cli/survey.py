"""Asks every service of a mesh for its STATS and reads the answers."""

import asyncio
import contextlib
import secrets
from collections.abc import Collection

import msgspec
import structlog

from paceline.bus.interface import Bus, Delivery
from paceline.bus.micro import Stats
from paceline.contracts.messages import Load

log = structlog.get_logger(__name__)

_LAST_ANSWER_S = 1.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One worker; `engine` and `kv_dtype` are empty for one without an engine, `restarts` only there where the run that
    started it is known. See `hit_rate`."""

    service: str
    worker: str
    state: str
    model: str
    engine: str
    kv_dtype: str
    running: int
    waiting: int
    pages_used: int
    pages_cached: int
    pages_total: int
    hit_rate: float | None
    tokens_per_s: float
    restarts: int | None = None


async def survey(bus: Bus, expected: Collection[str]) -> list[Row]:
    """The rows of all that answer, ordered by service and worker.

    Returns once every worker in `expected` has answered, or after a second.
    """
    inbox = f"_INBOX.paceline.{secrets.token_hex(8)}"
    rows: dict[str, Row] = {}
    complete = asyncio.Event()

    def answer(delivery: Delivery) -> None:
        try:
            row = read(delivery.data)
        except msgspec.DecodeError as e:
            # Other micro services may live on the same server.
            log.info("stats_not_understood", error=str(e))
            return
        rows[row.worker] = row
        if expected and rows.keys() >= set(expected):
            complete.set()

    subscription = await bus.subscribe(inbox, answer)
    await bus.publish("$SRV.STATS", b"", reply=inbox)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(complete.wait(), _LAST_ANSWER_S)
    await subscription.unsubscribe()
    return sorted(rows.values(), key=lambda row: (row.service, row.worker))


def read(data: bytes) -> Row:
    """One STATS reply. Raises `msgspec.DecodeError` for one that is not a Paceline service's."""
    stats = msgspec.json.decode(data, type=Stats)
    live = stats.endpoints[0].data if stats.endpoints else {}
    load = msgspec.convert(live, Load)
    return Row(
        service=stats.name,
        worker=stats.id,
        state=live.get("state", "unknown"),
        model=stats.metadata.get("model", ""),
        engine=stats.metadata.get("engine", ""),
        kv_dtype=stats.metadata.get("kv_dtype", ""),
        running=load.running,
        waiting=load.waiting,
        pages_used=load.pages_used,
        pages_cached=load.pages_cached,
        pages_total=load.pages_total,
        hit_rate=hit_rate(load.counters),
        tokens_per_s=load.tokens_per_s,
    )


def hit_rate(counters: dict[str, int]) -> float | None:
    """Of prompt tokens for a worker, of pages for the store; None for a service that reuses nothing."""
    if "prompt_tokens" in counters:
        hits, total = counters.get("cached_tokens", 0), counters["prompt_tokens"]
    else:
        hits = counters.get("hits", 0)
        total = hits + counters.get("misses", 0)
    return hits / total if total else None
