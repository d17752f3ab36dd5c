"""Scales of keys and values under the names that writers of checkpoints gave them."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from paceline.contracts.errors import InvalidRequest
from paceline.model.quantized.kv_scales import KvScales, open_kv_scales
from paceline.model.safetensors import SafetensorsDirectory

ATTENTION = "model.layers.1.self_attn"


def scales(directory: Path, tensors: dict[str, Tensor]) -> KvScales:
    named = {f"{ATTENTION}.{k}": v for k, v in tensors.items()} | {"other": torch.ones(1)}
    safetensors.torch.save_file(named, directory / "model.safetensors")
    return open_kv_scales(SafetensorsDirectory(directory), ATTENTION)


@pytest.mark.parametrize(
    "names",
    [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_has_its_own(names: tuple[str, str], dtype: torch.dtype, tmp_path: Path) -> None:
    key, value = names
    tensors = {key: torch.tensor([0.5], dtype=dtype), value: torch.tensor(0.25, dtype=dtype)}
    assert scales(tmp_path, tensors) == KvScales(0.5, 0.25)


def test_one_for_both(tmp_path: Path) -> None:
    assert scales(tmp_path, {"kv_scale": torch.tensor(0.5)}) == KvScales(0.5, 0.5)


def test_absent(tmp_path: Path) -> None:
    assert scales(tmp_path, {}) == KvScales(None, None)


def test_minus_one_is_absent(tmp_path: Path) -> None:
    tensors = {
        "k_scale": torch.tensor(-1.0),
        "v_scale": torch.tensor(0.5),
        "k_proj.output_scale": torch.tensor(2.0),
    }
    assert scales(tmp_path, tensors) == KvScales(2.0, 0.5)


@pytest.mark.parametrize(
    ("scale", "reason"),
    [
        (torch.tensor(0.0), r"model\.safetensors: tensor .*k_scale is 0\.0, expected a positive number"),
        (torch.tensor(float("inf")), "k_scale is inf"),
        (torch.ones(2), r"k_scale has type F32 and shape \(2,\), expected one float"),
        (torch.tensor(1), r"k_scale has type I64 and shape \(\), expected one float"),
    ],
)
def test_what_is_no_scale_is_refused(scale: Tensor, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        scales(tmp_path, {"k_scale": scale})
