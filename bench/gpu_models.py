"""Whole models on a GPU: tokens per second of prompts and of decoding, with KV in bfloat16 and in FP8."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench.generated import GeneratedEngine
from bench.windows import chunk_step
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import Sampling
from paceline.engine.interface import Engine
from paceline.engine.layout import KvDtype
from paceline.engine.registry import open_engine
from paceline.engine.step import Step
from paceline.model.files import locate
from paceline.model.pull import ensure_default

_GREEDY = Sampling(max_tokens=1, temperature=0.0)

DENSE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
"""Llama 3 8B: 16 GB."""
EXPERTS: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
"""DeepSeek-V2-Lite with half of its layers and experts in INT4: 6 GB."""


@dataclass(frozen=True)
class Load:
    """Prompts of `context` tokens in chunks of `chunk`; sequences behind as many that decode `steps` times together."""

    context: int = 4096
    chunk: int = 2048
    batches: tuple[int, ...] = (1, 8, 16)
    steps: int = 20


@dataclass(frozen=True)
class Speed:
    """In tokens per second."""

    model: str
    kv: str
    what: str
    tokens_per_s: float


@dataclass(frozen=True)
class Model:
    name: str
    open: Callable[[KvDtype, Path], Engine]


def models(device: str) -> list[Model]:
    def generated(config: dict[str, Any]) -> Callable[[KvDtype, Path], Engine]:
        return lambda kv, directory: GeneratedEngine(
            config, directory, dtype="bfloat16", kv_dtype=kv, device=device, threads=1
        )

    return [
        Model(
            "SmolLM2-135M",
            lambda kv, _: open_engine(
                "torch",
                locate(str(ensure_default(lambda *_: None))),
                dtype="bfloat16",
                kv_dtype=kv,
                device=device,
            ),
        ),
        Model("random, as Llama 3 8B", generated(DENSE)),
        Model("random, MLA and INT4 experts", generated(EXPERTS)),
    ]


def measure(model: Model, kv: KvDtype, load: Load) -> Iterator[Speed]:
    with tempfile.TemporaryDirectory() as directory:
        engine = model.open(kv, Path(directory))
        engine.load(lambda done, total: None)
        groups = len(engine.layout.groups)
        # One page more than the context, for what is decoded behind it.
        length = load.context + PAGE_TOKENS
        pages = groups * max(load.batches) * length // PAGE_TOKENS
        engine.bind(np.zeros((pages, engine.layout.page_bytes), dtype=np.uint8))
        prompt = [_step(engine, 1, start, load.chunk, length) for start in range(0, load.context, load.chunk)]
        _run(engine, prompt)
        yield Speed(model.name, kv, "prefill", load.context / median(_run(engine, prompt) for _ in range(3)))
        for count in load.batches:
            steps = [_step(engine, count, load.context + i, 1, length) for i in range(load.steps)]
            _run(engine, steps[:2])
            seconds = _run(engine, steps)
            yield Speed(model.name, kv, f"decode, {count} at once", count * load.steps / seconds)
        engine.close()
    del engine
    gc.collect()
    torch.cuda.empty_cache()


def _step(engine: Engine, count: int, start: int, rows: int, length: int) -> Step:
    tokens = np.random.default_rng(start).integers(0, engine.vocab, (count, rows), dtype=np.int32)
    return chunk_step(tokens, start, length, len(engine.layout.groups), score=rows == 1)


def _run(engine: Engine, steps: list[Step]) -> float:
    """Seconds until the last step's tokens are here."""
    began = time.perf_counter()
    for step in steps:
        engine.sample(step, [_GREEDY] * len(step.logit_rows))
    return time.perf_counter() - began
