"""What is wrong with a model directory is one error that names file, tensor and reason, before any weight is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import read_config
from paceline.model.files import locate
from paceline.model.parts import Part, parts
from paceline.model.weights import open_weights

GROUP = 32
TEXT: dict[str, Any] = {
    "model_type": "kimi_k2",
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["re:.*experts\\.\\d+\\."],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP},
            }
        },
    },
}
CONFIG = {"model_type": "kimi_k25", "text_config": TEXT}
DECODER = "language_model.model.layers."
EXPERT = DECODER + "1.mlp.experts.3.up_proj."
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

Tensors = dict[str, Tensor]


class Checkpoint:
    """A tiny Kimi in two shards with an index, to be damaged and then saved."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config: dict[str, Any] = json.loads(json.dumps(CONFIG))
        self.tensors: Tensors = {}
        (directory / "config.json").write_text(json.dumps(CONFIG))
        (directory / SHARDS[0]).touch()
        for part in parts(read_config(locate(str(directory)))):
            prefix = "language_model." if part.name.startswith("lm_head") else "language_model.model."
            self.tensors |= _stored(prefix, part)

    @property
    def text(self) -> dict[str, Any]:
        found: dict[str, Any] = self.config["text_config"]
        return found

    def save(self) -> None:
        names = list(self.tensors)
        where = {name: SHARDS[2 * i // len(names)] for i, name in enumerate(names)}
        for shard in SHARDS:
            own = {name: self.tensors[name] for name in names if where[name] == shard}
            safetensors.torch.save_file(own, self.directory / shard)
        self.write("model.safetensors.index.json", {"weight_map": where})
        self.write("config.json", self.config)

    def write(self, name: str, content: object) -> None:
        (self.directory / name).write_text(json.dumps(content))

    def open(self) -> None:
        files = locate(str(self.directory))
        open_weights(files, read_config(files))


def _stored(prefix: str, part: Part) -> Tensors:
    module = prefix + part.name.removesuffix(".weight")
    if ".experts." not in part.name:
        return {prefix + part.name: torch.zeros(part.shape, dtype=torch.bfloat16)}
    rows, columns = part.shape
    return {
        f"{module}.weight_packed": torch.zeros(rows, columns // 8, dtype=torch.int32),
        f"{module}.weight_scale": torch.ones(rows, columns // GROUP, dtype=torch.bfloat16),
        f"{module}.weight_shape": torch.tensor([rows, columns]),
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


def refusal(checkpoint: Checkpoint) -> str:
    with pytest.raises(InvalidRequest) as refused:
        checkpoint.open()
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(str(checkpoint.directory))
    return message.removeprefix(str(checkpoint.directory))


def test_an_undamaged_one_opens(checkpoint: Checkpoint) -> None:
    checkpoint.save()
    checkpoint.open()


@pytest.mark.parametrize(
    "name",
    [
        "language_model.lm_head.weight",
        DECODER + "0.mlp.down_proj.weight",
        DECODER + "1.self_attn.kv_a_layernorm.weight",
        DECODER + "1.mlp.gate.e_score_correction_bias",
        DECODER + "1.mlp.shared_experts.gate_proj.weight",
        EXPERT + "weight_packed",
        EXPERT + "weight_scale",
        EXPERT + "weight_shape",
    ],
)
def test_missing_tensors(name: str, checkpoint: Checkpoint) -> None:
    del checkpoint.tensors[name]
    checkpoint.save()
    assert refusal(checkpoint) == f": tensor {name} is missing"


def test_names_of_no_known_model(checkpoint: Checkpoint) -> None:
    checkpoint.tensors = {f"trunk.{name}": tensor for name, tensor in checkpoint.tensors.items()}
    checkpoint.save()
    assert refusal(checkpoint) == ": tensor model.embed_tokens.weight is missing"


def test_a_missing_expert(checkpoint: Checkpoint) -> None:
    kept = {n: t for n, t in checkpoint.tensors.items() if "1.mlp.experts.3." not in n}
    assert len(kept) == len(checkpoint.tensors) - 9
    checkpoint.tensors = kept
    checkpoint.save()
    assert refusal(checkpoint) == f": tensor {DECODER}1.mlp.experts.3.gate_proj.weight_packed is missing"


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        (DECODER + "0.self_attn.o_proj.weight", torch.zeros(64, 16), "shape (64, 16), expected (64, 32)"),
        (DECODER + "1.input_layernorm.weight", torch.zeros(1, 64), "shape (1, 64), expected (64,)"),
        (DECODER + "1.mlp.gate.weight", torch.zeros(3, 64), "shape (3, 64), expected (4, 64)"),
        (EXPERT + "weight_packed", torch.zeros(32, 4, dtype=torch.int32), "shape (32, 4), expected (32, 8)"),
        (EXPERT + "weight_packed", torch.zeros(32, 8), "type F32, expected I32"),
        (EXPERT + "weight_scale", torch.ones(32, 1), "shape (32, 1), expected (32, 2)"),
        (
            EXPERT + "weight_scale",
            torch.ones(32, 2, dtype=torch.int32),
            "type I32, expected F32 or F16 or BF16",
        ),
        (EXPERT + "weight_shape", torch.tensor([64, 32]), "says [64, 32], expected [32, 64]"),
        (
            DECODER + "1.mlp.gate.weight",
            torch.zeros(4, 64, dtype=torch.float64),
            "type F64, none of F32, F16, BF16",
        ),
    ],
)
def test_wrong_tensors(name: str, tensor: Tensor, reason: str, checkpoint: Checkpoint) -> None:
    checkpoint.tensors[name] = tensor
    checkpoint.save()
    message = refusal(checkpoint)
    assert f"tensor {name} " in message
    assert message.endswith(reason)


def test_a_truncated_shard(checkpoint: Checkpoint) -> None:
    checkpoint.save()
    shard = checkpoint.directory / SHARDS[1]
    with safetensors.safe_open(shard, "pt") as file:
        last = file.offset_keys()[-1]
    shard.write_bytes(shard.read_bytes()[:-1])
    assert refusal(checkpoint) == f"/{SHARDS[1]} is truncated or damaged: tensor {last} does not fit"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: [Errno 2] No such file"),
        (b"", "cannot be read: cannot mmap an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is damaged or no safetensors file"),
        (b"<html>not found</html>", "is damaged or no safetensors file"),
    ],
)
def test_a_shard_that_was_not_fetched(content: bytes | None, reason: str, checkpoint: Checkpoint) -> None:
    checkpoint.save()
    shard = checkpoint.directory / SHARDS[1]
    shard.unlink()
    if content is not None:
        shard.write_bytes(content)
    assert refusal(checkpoint).startswith(f"/{SHARDS[1]} {reason}")


def test_a_tensor_that_its_shard_lacks(checkpoint: Checkpoint) -> None:
    """The index promises it."""
    name = "language_model.model.norm.weight"
    checkpoint.save()
    index = json.loads((checkpoint.directory / "model.safetensors.index.json").read_text())
    del checkpoint.tensors[name]
    checkpoint.save()
    checkpoint.write("model.safetensors.index.json", index)
    assert refusal(checkpoint) == f": tensor {name} is missing"


def _set(where: Callable[[Checkpoint], dict[str, Any]], **values: Any) -> Callable[[Checkpoint], None]:
    def change(checkpoint: Checkpoint) -> None:
        where(checkpoint).update(values)

    return change


def _text(checkpoint: Checkpoint) -> dict[str, Any]:
    return checkpoint.text


def _scheme(checkpoint: Checkpoint) -> dict[str, Any]:
    found: dict[str, Any] = checkpoint.text["quantization_config"]
    return found


def _weights(checkpoint: Checkpoint) -> dict[str, Any]:
    found: dict[str, Any] = _scheme(checkpoint)["config_groups"]["group_0"]["weights"]
    return found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set(_text, model_type="mamba2"), "model_type 'mamba2' is none of llama, "),
        (_set(_text, hidden_act="gelu"), "activation 'gelu' is not silu"),
        (_set(_text, topk_method="greedy"), "topk_method 'greedy' is not noaux_tc"),
        (_set(_text, kv_lora_rank=None), "kv_lora_rank is missing"),
        (
            _set(_text, num_hidden_layers="two"),
            "num_hidden_layers is 'two', expected a positive whole number",
        ),
        (
            _set(_scheme, quant_method="bitsandbytes"),
            "quantization by 'bitsandbytes' is none of compressed-tensors, ",
        ),
        (_set(_scheme, format="marlin-24"), "marlin-24 of symmetric int4 per group is not supported"),
        (_set(_weights, num_bits=8), "pack-quantized of symmetric int8 per group is not supported"),
        (
            _set(_weights, num_bits="four"),
            "the quantization by compressed-tensors: Expected `int`, got `str`",
        ),
    ],
)
def test_configurations(change: Callable[[Checkpoint], None], reason: str, checkpoint: Checkpoint) -> None:
    change(checkpoint)
    checkpoint.save()
    assert refusal(checkpoint).startswith(f"/config.json: {reason}")


def test_groups_that_do_not_divide_the_inputs(checkpoint: Checkpoint) -> None:
    _weights(checkpoint)["group_size"] = 48
    checkpoint.save()
    module = DECODER + "1.mlp.experts.0.gate_proj"
    assert refusal(checkpoint) == f": {module} of shape (32, 64) is not divisible into groups of 48 int4"


def test_a_directory_without_safetensors(checkpoint: Checkpoint) -> None:
    checkpoint.save()
    for shard in SHARDS:
        (checkpoint.directory / shard).rename(checkpoint.directory / f"{shard}.bin")
    assert refusal(checkpoint).startswith(f"/{SHARDS[0]} cannot be read: ")
    (checkpoint.directory / "model.safetensors.index.json").unlink()
    message = " has no .safetensors files, but {}: save it as safetensors first"
    assert refusal(checkpoint) in {message.format(f"{shard}.bin") for shard in SHARDS}
    for shard in SHARDS:
        (checkpoint.directory / f"{shard}.bin").unlink()
    assert refusal(checkpoint) == " has no .safetensors files"
