"""Experts in tensors of a whole layer, and the names under which models keep their tensors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import read_config
from paceline.model.files import ModelFiles
from paceline.model.fused import TransposedTensor
from paceline.model.weights import Stored, open_weights

HIDDEN, INNER, EXPERTS = 16, 8, 3
BASE = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 64,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
}
Tensors: TypeAlias = dict[str, torch.Tensor]
EXPERT = "layers.0.mlp.experts.2."


def attention(prefix: str, bias: bool) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (HIDDEN,)}
    shapes["post_attention_layernorm.weight"] = (HIDDEN,)
    for module in "qkvo":
        shapes[f"self_attn.{module}_proj.weight"] = (HIDDEN, HIDDEN)
        if bias:
            shapes[f"self_attn.{module}_proj.bias"] = (HIDDEN,)
    if bias:
        shapes["self_attn.sinks"] = (2,)
    tensors = {f"{prefix}layers.0.{name}": torch.randn(shape) for name, shape in shapes.items()}
    return tensors | {
        prefix + "embed_tokens.weight": torch.randn(10, HIDDEN),
        prefix + "norm.weight": torch.ones(HIDDEN),
    }


def llama4(prefix: str, head: str) -> Tensors:
    mlp = prefix + "layers.0.feed_forward."
    shared = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
    return {
        **attention(prefix, bias=False),
        head + "lm_head.weight": torch.randn(10, HIDDEN),
        mlp + "router.weight": torch.randn(EXPERTS, HIDDEN),
        mlp + "experts.gate_up_proj": torch.randn(EXPERTS, HIDDEN, 2 * INNER),
        mlp + "experts.down_proj": torch.randn(EXPERTS, INNER, HIDDEN),
        **{f"{mlp}shared_expert.{m}_proj.weight": torch.randn(shape) for m, shape in shared.items()},
    }


def gpt_oss() -> Tensors:
    mlp = "model.layers.0.mlp."
    return {
        **attention("model.", bias=True),
        "lm_head.weight": torch.randn(10, HIDDEN),
        mlp + "router.weight": torch.randn(EXPERTS, HIDDEN),
        mlp + "router.bias": torch.randn(EXPERTS),
        mlp + "experts.gate_up_proj": torch.randn(EXPERTS, HIDDEN, 2 * INNER).bfloat16(),
        mlp + "experts.gate_up_proj_bias": torch.randn(EXPERTS, 2 * INNER).bfloat16(),
        mlp + "experts.down_proj": torch.randn(EXPERTS, INNER, HIDDEN).bfloat16(),
        mlp + "experts.down_proj_bias": torch.randn(EXPERTS, HIDDEN).bfloat16(),
    }


def opened(directory: Path, config: dict[str, Any], tensors: Tensors) -> dict[str, Stored]:
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    files = ModelFiles("m", "hf", directory)
    return open_weights(files, read_config(files))


def values(stored: Stored) -> torch.Tensor:
    rows = 1 if len(stored.shape) == 1 else stored.shape[0]
    return torch.from_numpy(stored.float32(0, rows).copy()).reshape(stored.shape)


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.", ""),
        ("language_model.model.", "language_model."),
        ("model.language_model.", ""),
    ],
)
def test_llama4(tmp_path: Path, prefix: str, head: str) -> None:
    """The halves of the columns are those of the gate and those of up, whatever else the model has."""
    tensors = llama4(prefix, head) | {"vision_model.class_embedding": torch.ones(4)}
    config = {"model_type": "llama4", "text_config": BASE | {"model_type": "llama4_text"}}
    found = opened(tmp_path, config, tensors)
    mlp = prefix + "layers.0.feed_forward."
    gate_up = tensors[mlp + "experts.gate_up_proj"][2]
    assert torch.equal(values(found[EXPERT + "gate_proj.weight"]), gate_up[:, :INNER].T)
    assert torch.equal(values(found[EXPERT + "up_proj.weight"]), gate_up[:, INNER:].T)
    assert torch.equal(values(found[EXPERT + "down_proj.weight"]), tensors[mlp + "experts.down_proj"][2].T)
    assert torch.equal(values(found["layers.0.mlp.gate.weight"]), tensors[mlp + "router.weight"])
    assert torch.equal(values(found["lm_head.weight"]), tensors[head + "lm_head.weight"])
    assert sum(t.nbytes for t in found.values()) == sum(t.nbytes for t in tensors.values()) - 16


def test_gpt_oss(tmp_path: Path) -> None:
    """Columns stay as they are, and biases belong to experts."""
    tensors = gpt_oss()
    found = opened(tmp_path, BASE | {"model_type": "gpt_oss"}, tensors)
    experts = "model.layers.0.mlp.experts."
    for module in ("gate_up_proj", "down_proj"):
        assert torch.equal(values(found[f"{EXPERT}{module}.weight"]), tensors[experts + module][2].T.float())
        assert torch.equal(
            values(found[f"{EXPERT}{module}.bias"]), tensors[f"{experts}{module}_bias"][2].float()
        )
    assert sum(t.nbytes for t in found.values()) == sum(t.nbytes for t in tensors.values())


@given(
    outputs=st.integers(1, 9),
    inputs=st.integers(1, 9),
    rows=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    dtype=st.sampled_from([(torch.float32, "F32"), (torch.float16, "F16"), (torch.bfloat16, "BF16")]),
    left=st.integers(0, 3),
)
def test_rows_of_a_transposed_matrix(
    outputs: int, inputs: int, rows: tuple[int, int], dtype: tuple[torch.dtype, str], left: int
) -> None:
    """Any rows are the columns of the file, also where these are only some of its columns."""
    stored = torch.randn(inputs, left + outputs).to(dtype[0])
    width = stored.element_size()
    data = stored.view(torch.uint8).numpy().reshape(inputs, -1)[:, left * width :]
    start, stop = sorted(min(r, outputs) for r in rows)
    matrix = TransposedTensor(dtype[1], (outputs, inputs), data)
    expected = stored[:, left:].T[start:stop]
    assert np.array_equal(matrix.float32(start, stop), expected.float().numpy())
    cells = data.reshape(inputs, outputs, width)[:, start:stop]
    assert matrix.raw(start, stop).tobytes() == cells.swapaxes(0, 1).tobytes()
    assert matrix.nbytes == width * outputs * inputs


def drop(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def cut(name: str, dim: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name].narrow(dim, 0, tensors[name].shape[dim] - 1).contiguous()

    return change


MLP = "model.layers.0.mlp."


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (drop("model.embed_tokens.weight"), "tensor model.embed_tokens.weight is missing"),
        (drop(MLP + "router.bias"), "tensor model.layers.0.mlp.router.bias is missing"),
        (drop(MLP + "experts.down_proj"), "tensor model.layers.0.mlp.experts.0.down_proj.weight is missing"),
        (
            cut(MLP + "experts.gate_up_proj", 0),
            "experts.gate_up_proj has shape (2, 16, 16), expected (16, 16) of expert 2",
        ),
        (
            cut(MLP + "experts.gate_up_proj", 1),
            "experts.gate_up_proj has shape (3, 15, 16), expected (16, 16) of expert 0",
        ),
        (
            cut(MLP + "experts.down_proj_bias", 1),
            "experts.down_proj_bias has shape (3, 15), expected (16,) of expert 0",
        ),
        (cut("model.layers.0.self_attn.sinks", 0), "self_attn.sinks has shape (1,), expected (2,)"),
    ],
)
def test_refusals(tmp_path: Path, damage: Callable[[Tensors], None], reason: str) -> None:
    tensors = gpt_oss()
    damage(tensors)
    with pytest.raises(InvalidRequest) as refused:
        opened(tmp_path, BASE | {"model_type": "gpt_oss"}, tensors)
    assert str(tmp_path) in str(refused.value)
    assert reason in str(refused.value)
