"""Large prompts must not stop other streams."""

import asyncio
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import msgspec
import pytest
from tokenizers import pre_tokenizers

from paceline.bus.memory import MemoryBroker
from paceline.contracts.messages import Generate
from tests.service.gateway_mesh import scripted_mesh
from tests.service.gateway_model import write_model
from tests.service.gateway_worker import MODEL, Script
from tests.unit.model.files import train_tokenizer

LIMIT_S = 0.010
TRIES = 25
SENTENCE = "The quick brown fox jumps over the lazy dog, and don't we love it when it's 12:34 in 2025?\n"


@pytest.fixture
def switch_interval() -> Iterator[None]:
    """As every service runs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    yield
    sys.setswitchinterval(before)


async def longest_stretch(done: asyncio.Event) -> float:
    """Seconds by which the loop was late, at worst, until `done`."""
    worst = 0.0
    while not done.is_set():
        before = perf_counter()
        await asyncio.sleep(0.001)
        worst = max(worst, perf_counter() - before - 0.001)
    return worst


async def test_a_prompt_of_33k_tokens_stops_the_loop_for_less_than_10_ms(
    memory_broker: MemoryBroker, tmp_path: Path, switch_interval: None
) -> None:
    """Other processes can only make the loop later, so that one good try out of some proves it."""
    tokenizer = train_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
    model = write_model(tmp_path / "model", tokenizer)
    per_sentence = len(tokenizer.encode(SENTENCE).ids)
    async with scripted_mesh(memory_broker, model, Script(answer=[100, 101]), decode=0) as mesh:
        worker = await mesh.add("decode", "d0")
        worker.model = msgspec.structs.replace(MODEL, context=1 << 17)
        await worker.beacon()
        body = msgspec.json.encode(mesh.body(SENTENCE * (33_000 // per_sentence + 1)))
        tries: list[float] = []
        while len(tries) < TRIES and min(tries, default=1.0) >= LIMIT_S:
            done = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(longest_stretch(done))
                async with mesh.http.post(f"{mesh.url}/v1/chat/completions", data=body) as response:
                    assert response.status == 200, await response.text()
                done.set()
            tries.append(watching.result())
        assert len(worker.messages(Generate)[0].work.prompt) > 33_000
        assert min(tries) < LIMIT_S, [f"{1000 * t:.1f} ms" for t in tries]


@pytest.mark.parametrize(
    "extra",
    [
        b'"tools":[%s]',
        b'"functions":[%s]',
        b'"messages":[{"role":"user","content":"x","tool_calls":[%s]}]',
        b'"unknown":[%s]',
    ],
)
async def test_a_body_of_millions_of_values_hardly_stops_the_loop(
    memory_broker: MemoryBroker, tmp_path: Path, switch_interval: None, extra: bytes
) -> None:
    """What is refused anyway is not built first, which would take a second."""
    model = write_model(tmp_path / "model")
    fields = extra % b",".join([b"[]"] * 1_300_000)
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],' + fields + b"}"
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        tries: list[float] = []
        while len(tries) < 5 and min(tries, default=1.0) >= 0.1:
            done = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(longest_stretch(done))
                async with mesh.http.post(
                    f"{mesh.url}/v1/chat/completions", data=io.BytesIO(body)
                ) as response:
                    assert response.status == 400
                done.set()
            tries.append(watching.result())
        assert min(tries) < 0.1, [f"{1000 * t:.1f} ms" for t in tries]


async def test_tokens_are_turned_to_text_beside_the_loop(
    memory_broker: MemoryBroker, tmp_path: Path, switch_interval: None
) -> None:
    """Half a million of them, which takes a good part of a second."""
    model = write_model(tmp_path / "model")
    body = msgspec.json.encode({"tokens": [97] * 500_000})
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        tries: list[float] = []
        while len(tries) < 5 and min(tries, default=1.0) >= 0.1:
            done = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(longest_stretch(done))
                async with mesh.http.post(f"{mesh.url}/detokenize", data=io.BytesIO(body)) as response:
                    assert response.status == 200
                    assert await response.json() == {"prompt": "a" * 500_000, "content": "a" * 500_000}
                done.set()
            tries.append(watching.result())
        assert min(tries) < 0.1, [f"{1000 * t:.1f} ms" for t in tries]
