"""Equal for equal models, different for any other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import ModelConfig, read_config
from paceline.model.files import ModelFiles
from paceline.model.fingerprint import fingerprint
from paceline.model.weights import open_weights
from tests.unit.model.files import write_gguf

METADATA = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.block_count": 1,
    "llama.attention.head_count": 4,
    "llama.feed_forward_length": 96,
    "llama.context_length": 2048,
    "llama.attention.layer_norm_rms_epsilon": 0.5,
}
NONE: dict[str, Any] = {}
SHAPES = {
    "token_embd": (320, 64),
    "output_norm": (64,),
    "blk.0.attn_norm": (64,),
    "blk.0.attn_q": (64, 64),
    "blk.0.attn_k": (64, 64),
    "blk.0.attn_v": (64, 64),
    "blk.0.attn_output": (64, 64),
    "blk.0.ffn_norm": (64,),
    "blk.0.ffn_gate": (96, 64),
    "blk.0.ffn_up": (96, 64),
    "blk.0.ffn_down": (64, 96),
}


def model(path: Path, quant: str = "F32", tuned: str = "", metadata: dict[str, Any] = NONE) -> ModelFiles:
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    if tuned:
        tensors[tuned] = tensors[tuned] * np.float32(1.001)
    stored = {f"{n}.weight": (quant if v.ndim > 1 else "F32", v) for n, v in tensors.items()}
    return ModelFiles("m", "gguf", write_gguf(path, METADATA | metadata, stored))


def test_equal_files_have_one_fingerprint(tmp_path: Path) -> None:
    first = fingerprint(model(tmp_path / "a.gguf"))
    assert len(first) == 32
    assert first == fingerprint(model(tmp_path / "b.gguf", metadata={"general.name": "another name"}))


def test_every_difference_shows(tmp_path: Path) -> None:
    variants = [model(tmp_path / f"{n}.gguf", tuned=n) for n in SHAPES]
    variants.append(model(tmp_path / "same.gguf"))
    variants.append(model(tmp_path / "quant.gguf", "Q8_0"))
    variants.append(model(tmp_path / "theta.gguf", metadata={"llama.rope.freq_base": 5.0}))
    assert len({fingerprint(v) for v in variants}) == len(variants)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"llama.block_count": 2}, "tensor blk.1.attn_norm.weight is missing"),
        (
            {"llama.feed_forward_length": 95},
            "ffn_gate.weight has shape (96, 64), expected (95, 64)",
        ),
    ],
)
def test_weights_that_do_not_fit_the_configuration(
    metadata: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    files = model(tmp_path / "m.gguf", metadata=metadata)
    config: ModelConfig = read_config(files)
    with pytest.raises(InvalidRequest) as refused:
        open_weights(files, config)
    assert reason in str(refused.value)
