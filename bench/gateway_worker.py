"""A decode worker that computes nothing: each of its sequences gets a token so many times a second.

    python -m bench.gateway_worker --nats URL --model NAME --rate N --tokens FILE

Its answers repeat the token ids of the JSON list in FILE. It sends what a real worker sends, one frame for a step.
"""

import argparse
import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import uvloop

from paceline.bus.interface import Bus
from paceline.bus.nats import NatsBus
from paceline.bus.service import MicroService
from paceline.contracts import subjects
from paceline.contracts.codec import encode
from paceline.contracts.frames import Tokens, encode_frame
from paceline.contracts.messages import (
    Ack,
    Beacon,
    CachedTokens,
    Cancel,
    Confirm,
    Done,
    Generate,
    Load,
    ModelInfo,
    Started,
    Timings,
    Work,
)
from paceline.runtime.identity import new_identity

_BEACON_S = 0.5


@dataclass(eq=False)
class _Sequence:
    work: Work
    said: int = 0


class Worker:
    """Keeps time by the clock, so that a slow step is followed by faster ones."""

    def __init__(self, bus: Bus, model: str, answer: list[int]) -> None:
        self._bus = bus
        self._answer = answer
        self._identity = new_identity("decode", "bench")
        self._model = ModelInfo(
            name=model,
            context=1 << 20,
            fingerprint=b"b" * 32,
            kv_dtype="bfloat16",
            page_bytes=1,
            engine="none",
        )
        self._sequences: dict[str, _Sequence] = {}
        self._api = MicroService(bus, self._identity, description="bench", metadata={}, load=Load)
        self._api.serve(subjects.GENERATE, self._generate)
        self._api.serve(subjects.CANCEL, self._cancel)
        self._api.serve(subjects.CONFIRM, self._confirm)

    async def run(self, rate: float) -> None:
        await self._api.start()
        loop = asyncio.get_running_loop()
        due = beacon = loop.time()
        while True:
            if loop.time() >= beacon:
                await self._beacon()
                beacon += _BEACON_S
            await self._step()
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _step(self) -> None:
        frames: dict[str, list[Tokens]] = {}
        ended = []
        for sequence in self._sequences.values():
            work, index = sequence.work, sequence.said
            sequence.said += 1
            token = self._answer[index % len(self._answer)]
            frames.setdefault(work.gateway, []).append(Tokens(work.request_id, work.attempt, index, (token,)))
            if sequence.said == work.sampling.max_tokens:
                ended.append(sequence)
        for gateway, entries in frames.items():
            await self._bus.publish(subjects.events(gateway), encode_frame(entries))
        for sequence in ended:
            await self._done(sequence)

    async def _generate(self, message: Generate) -> Ack:
        work = message.work
        self._sequences[work.request_id] = _Sequence(work)
        started = Started(
            request_id=work.request_id,
            attempt=work.attempt,
            worker=self._identity.worker,
            cached=CachedTokens(),
            timings=Timings(),
        )
        await self._bus.publish(subjects.events(work.gateway), encode(started))
        return Ack()

    async def _done(self, sequence: _Sequence) -> None:
        work = sequence.work
        del self._sequences[work.request_id]
        done = Done(
            request_id=work.request_id,
            attempt=work.attempt,
            worker=self._identity.worker,
            finish_reason="length",
            tokens=sequence.said,
        )
        await self._bus.publish(subjects.events(work.gateway), encode(done))

    async def _cancel(self, message: Cancel) -> Ack:
        self._sequences.pop(message.request_id, None)
        return Ack()

    async def _confirm(self, message: Confirm) -> Ack:
        return Ack()

    async def _beacon(self) -> None:
        own = self._identity
        beacon = Beacon(
            role=own.role,
            worker=own.worker,
            incarnation=own.incarnation,
            host="bench",
            pid=1,
            state="ready",
            started=own.started,
            load=Load(running=len(self._sequences)),
            model=self._model,
        )
        await self._bus.publish(subjects.beacon(own.role, own.worker), encode(beacon))


async def _main(nats: str, model: str, rate: float, answer: list[int]) -> None:
    bus = await NatsBus.connect(nats, name="bench worker")
    await Worker(bus, model, answer).run(rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    options = parser.parse_args()
    answer = json.loads(options.tokens.read_text())
    uvloop.run(_main(options.nats, options.model, options.rate, answer))


if __name__ == "__main__":
    main()
