"""A real model through both workers: pages of the torch engine, handed over, give the text of a single process."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from paceline.bus.memory import MemoryBroker
from paceline.contracts.messages import CachedTokens
from tests.helpers import until
from tests.unit.engine_torch.models import VOCAB, Reference, save_model
from tests.workers import make_work, mesh


def greedy(reference: Reference, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference.logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(
    "name",
    [
        *("llama", "qwen2", "qwen3", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa"),
        *("qwen3_moe", "glm4_moe", "llama4", "gpt_oss"),
    ],
)
async def test_disaggregated_equals_unified_equals_a_single_loop(
    memory_broker: MemoryBroker, tmp_path: Path, name: str
) -> None:
    reference = save_model(name, tmp_path / "model")
    settings: dict[str, Any] = {
        "engine": "torch",
        "model": str(tmp_path / "model"),
        "dtype": "float32",
        "kv_dtype": "float32",
    }
    async with mesh(
        memory_broker, tmp_path / "run", kvstore=True, step_tokens=100, kv_bytes=1 << 23, **settings
    ) as m:
        prompts = [[(i * 37 + n) % (VOCAB - 3) + 3 for i in range(n)] for n in (20, 130, 300)]
        works = [make_work(p, max_tokens=12, sampling={"ignore_eos": True}) for p in prompts + prompts]
        answers = await asyncio.gather(*(m.finish(w, remote=i < 3) for i, w in enumerate(works)))
        for work, answer in zip(works, answers, strict=True):
            assert answer.all() == greedy(reference, work.prompt, 12)
        again = await m.finish(make_work(prompts[2], max_tokens=12, sampling={"ignore_eos": True}))
        assert again.all() == answers[2].all()
        assert again.started.cached == CachedTokens(device=256)
        await until(lambda: m.prefill.store.unsaved == 0)
        await m.idle()
