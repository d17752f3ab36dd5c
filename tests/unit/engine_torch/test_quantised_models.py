"""A quantised checkpoint runs as the model whose weights are what its codes mean, in every precision and place."""

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from paceline.engine.torch import loader
from paceline.engine.torch.stored_matrix import keep_precision
from paceline.model.config import read_config
from paceline.model.files import locate
from paceline.model.names import Names
from paceline.model.safetensors import SafetensorsDirectory
from paceline.model.weights import open_weights
from paceline.quantize.options import Options
from paceline.quantize.run import quantize
from tests.unit.engine_torch.bound import Bound
from tests.unit.engine_torch.models import (
    DEEPSEEK_YARN,
    EXPERTS,
    LATENT,
    MODELS,
    YARN_ROPE,
    Reference,
    save,
)
from tests.unit.engine_torch.steps import Rows
from tests.unit.engine_torch.test_parity import assert_same, prompt

library: Any = transformers
Array = npt.NDArray[np.float32]

# Rows and groups of experts in whole blocks of 32.
_WHOLE = {"hidden_size": 96, "moe_intermediate_size": 64, "kv_lora_rank": 64, "q_lora_rank": 64}
_MODELS: dict[str, Any] = {
    "llama": MODELS["llama"],
    "deepseek_v3": lambda: transformers.DeepseekV3Config(**LATENT | _WHOLE, rope_parameters=DEEPSEEK_YARN),
    "llama4": MODELS["llama4"],
    "gpt_oss": lambda: transformers.GptOssConfig(
        **EXPERTS | {"intermediate_size": 64},
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=50,
        rope_parameters=YARN_ROPE | {"truncate": False},
    ),
}


def dequantised(directory: Path, target: Path) -> Reference:
    """The model in `directory` with plain float32 weights, in transformers."""
    files = locate(str(directory))
    config = json.loads((directory / "config.json").read_text())
    del config["quantization_config"]
    target.mkdir()
    (target / "config.json").write_text(json.dumps(config))
    parsed = read_config(files)
    values = {
        name: stored.float32(0, stored.shape[0] if len(stored.shape) > 1 else 1).reshape(stored.shape)
        for name, stored in open_weights(files, parsed).items()
    }
    names = Names.of(parsed.family, SafetensorsDirectory(directory))
    if parsed.family in ("llama4_text", "gpt_oss"):
        values = fused(values)
    tensors = {names.stored(name): np.ascontiguousarray(value) for name, value in values.items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    model = library.AutoModelForCausalLM.from_pretrained(
        target, attn_implementation="eager", dtype=torch.float32
    ).eval()
    return Reference(target, model)


def fused(values: dict[str, Array]) -> dict[str, Array]:
    """All experts of a layer in one transposed tensor, as transformers reads Llama 4 and gpt-oss."""
    whole: dict[str, Array] = {}
    parts: dict[str, list[Array]] = defaultdict(list)
    for name, value in values.items():
        if (match := re.fullmatch(r"(.+\.experts)\.(\d+)\.(\w+)\.(weight|bias)", name)) is None:
            whole[name] = value
            continue
        experts, expert, module, kind = match.groups()
        suffix = "_bias" if kind == "bias" else ""
        if module == "gate_proj":
            up = values[f"{experts}.{expert}.up_proj.weight"]
            parts[f"{experts}.gate_up_proj"].append(np.concatenate((value, up)).T)
        elif module != "up_proj":
            parts[f"{experts}.{module}{suffix}"].append(value.T)
    return whole | {name: np.stack(experts) for name, experts in parts.items()}


def check(quantised: Path, original: Reference, directory: Path) -> None:
    """The engine says of a quantised checkpoint what transformers says of its values, which are not the original's."""
    tokens = prompt(80)
    found = Bound.load(Reference(quantised, None)).run(Rows(tokens, 0, [1, 2]))
    expected = dequantised(quantised, directory).logits(tokens)
    assert_same(found, expected)
    assert np.abs(original.logits(tokens) - expected).max() > 0.01 * np.abs(expected).max()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    root = tmp_path_factory.mktemp("originals")
    return {name: save(config(), root / name) for name, config in _MODELS.items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", Options("int4", group=32)),
        ("llama", Options("fp8", fp8="block")),
        ("llama", Options("fp8", fp8="channel")),
        ("deepseek_v3", Options("int4", group=32, experts_only=True)),
        ("deepseek_v3", Options("int4", group=32)),
        ("deepseek_v3", Options("fp8", fp8="block")),
        ("llama4", Options("fp8", fp8="channel")),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.target}-{value.fp8}-{value.experts_only}",
)
def test_checkpoints_that_we_make(
    name: str,
    options: Options,
    originals: dict[str, Reference],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quantize(originals[name].directory, tmp_path / "out", options, lambda done, total: None)
    check(tmp_path / "out", originals[name], tmp_path / "plain")
    monkeypatch.setattr(loader, "read_matrix", keep_precision)  # as a GPU has them
    check(tmp_path / "out", originals[name], tmp_path / "plain again")


def test_mxfp4_experts(originals: dict[str, Reference], tmp_path: Path) -> None:
    """As gpt-oss is published: codes and scales of all experts in one tensor each, rows of gate and up by turns."""
    source, out = originals["gpt_oss"].directory, tmp_path / "out"
    shutil.copytree(source, out)
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (out / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    tensors = load_file(out / "model.safetensors")
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        shape = (experts, rows, columns // 32)
        tensors[f"{name}_blocks"] = random.integers(0, 256, (*shape, 16), dtype=np.uint8)
        tensors[f"{name}_scales"] = random.integers(121, 125, shape, dtype=np.uint8)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    check(out, originals["gpt_oss"], tmp_path / "plain")
