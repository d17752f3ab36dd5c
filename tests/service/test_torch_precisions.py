"""Prefill workers with KV in bfloat16 beside decode workers with KV in FP8: pages are converted on their way."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from paceline.bus.memory import MemoryBroker
from paceline.contracts.messages import CachedTokens, Failed
from paceline.engine.convert import PageConverter, UInt8
from paceline.engine.layout import KvDtype
from tests.helpers import until
from tests.service.oracle import Oracle
from tests.unit.engine_torch.models import MODELS, VOCAB, Reference, save_model
from tests.workers import make_work, mesh

COUNT = 10
LENGTHS = (40, 130, 300)


def wide_latents() -> Any:
    """DeepSeek-V3 with latents that scales of 128 values fit."""
    config = MODELS["deepseek_v3"]()
    config.kv_lora_rank = 128
    return config


def save(name: str, directory: Path) -> Reference:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(MODELS, "latent", wide_latents)
        return save_model(name, directory)


@pytest.fixture(scope="module", params=["llama", "latent", "glm_moe_dsa", "gpt_oss"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save("llama", tmp_path_factory.mktemp("llama"))


def prompt(length: int) -> list[int]:
    """Of which no answer here hangs on a tie."""
    return [(i * 37 + length * 4) % (VOCAB - 3) + 3 for i in range(length)]


def settings(reference: Reference, decode: dict[str, Any]) -> dict[str, Any]:
    """Of a prefill worker in bfloat16, and what differs for the decode worker."""
    return {
        "engine": "torch",
        "model": str(reference.directory),
        "dtype": "float32",
        "kv_dtype": "bfloat16",
        "kv_bytes": 1 << 23,
        "threads": 1,
        "decode": decode,
    }


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_per_token_head"])
async def test_answers_are_those_of_one_process_with_converted_pages(
    kv_dtype: KvDtype, reference: Reference, memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    oracle = Oracle.load(reference.files, prefill="bfloat16", decode=kv_dtype)
    works = [make_work(prompt(n), max_tokens=COUNT, sampling={"ignore_eos": True}) for n in LENGTHS]
    async with mesh(
        memory_broker, tmp_path, step_tokens=100, **settings(reference, {"kv_dtype": kv_dtype})
    ) as m:
        answers = await asyncio.gather(*(m.finish(work) for work in works))
        for work, answer in zip(works, answers, strict=True):
            assert answer.all() == oracle.handed_over(work.prompt, COUNT)
        again = await m.finish(make_work(prompt(300), max_tokens=COUNT, sampling={"ignore_eos": True}))
        assert again.all() == answers[-1].all()
        assert again.started.cached == CachedTokens(device=256)
        await m.idle()


async def test_pages_are_converted_off_the_event_loop(
    llama: Reference, memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    convert = PageConverter.convert

    def record(self: PageConverter, group: int, page: UInt8) -> UInt8:
        threads.append(threading.current_thread().name)
        return convert(self, group, page)

    monkeypatch.setattr(PageConverter, "convert", record)
    async with mesh(memory_broker, tmp_path, **settings(llama, {"kv_dtype": "fp8_e4m3"})) as m:
        await m.finish(make_work(prompt(300)))
    assert threads == ["push_0"] * 5


async def test_the_store_is_left_to_prefill_workers_with_pages_of_another_size(
    llama: Reference, memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    """It holds pages of one size, those of whoever comes first, and a decode worker's prompts are short."""
    decode = {"kv_dtype": "fp8_e4m3"}
    async with mesh(memory_broker, tmp_path, kvstore=True, **settings(llama, decode)) as m:
        await m.finish(make_work(prompt(130)), remote=False)
        await m.finish(make_work(prompt(300)))
        await until(lambda: m.prefill.store.unsaved == m.decode.store.unsaved == 0)
        assert m.kvstore.load().pages_cached == 300 // 64
        await m.idle()


async def test_pages_of_another_model_are_refused(
    llama: Reference, memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    """As if the router had paired two models: layouts are equal, and weights differ."""
    other = shutil.copytree(llama.directory, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] += 0.1
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    async with mesh(memory_broker, tmp_path / "run", **settings(llama, {"model": str(other)})) as m:
        answer = await m.finish(make_work(prompt(130)))
        assert isinstance(answer.end, Failed)
        assert answer.end.code == "invalid_request"
        assert answer.tokens.keys() <= {0}  # which prefill samples without knowing of the pages
        assert "another model or layout" in answer.end.message
        await m.idle()
