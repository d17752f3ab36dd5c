"""A step without rows, as a worker of a wider group may have one, is no error and starts no program."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.engine.torch.kernels.experts import DenseExperts, ExpertLayer
from paceline.engine.torch.kernels.experts import naive as plain_experts
from paceline.engine.torch.kernels.experts import triton as experts
from paceline.engine.torch.kernels.fp4_linear import triton as fp4_linear
from paceline.engine.torch.kernels.fp8_linear import triton as fp8_linear
from paceline.engine.torch.kernels.rms_norm import triton as rms_norm
from paceline.engine.torch.kernels.rope import triton as rope
from paceline.engine.torch.kernels.sampling import Draws
from paceline.engine.torch.kernels.sampling import triton as sampling
from paceline.engine.torch.kernels.w4a16 import triton as w4a16


def linear(form: str, x: Tensor) -> Tensor:
    match form:
        case "int4":
            return w4a16.w4a16_linear(x, torch.zeros(8, 4, dtype=torch.int32), torch.ones(8, 1), None)
        case "fp4":
            codes, scales = torch.zeros(8, 16, dtype=torch.uint8), torch.ones(8, 2).to(torch.float8_e4m3fn)
            return fp4_linear.fp4_linear(x, codes, scales, torch.ones(8))
        case _:
            return fp8_linear.fp8_linear(
                x, torch.zeros(8, 32).to(torch.float8_e4m3fn), torch.ones(1, 1), (8, 32)
            )


@pytest.mark.parametrize("form", ["int4", "fp4", "fp8"])
def test_products(form: str) -> None:
    found = linear(form, torch.empty(0, 32).bfloat16())
    assert found.shape == (0, 8)
    assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("version", [plain_experts.experts, experts.experts], ids=["naive", "triton"])
def test_experts(version: Callable[..., Tensor]) -> None:
    layer = ExpertLayer(DenseExperts(torch.zeros(4, 16, 32)), DenseExperts(torch.zeros(4, 32, 8)))
    ids, weights = torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2)
    assert version(torch.empty(0, 32), ids, weights, layer).shape == (0, 32)


def test_norms_rotations_and_samples() -> None:
    x, weight = torch.empty(0, 32), torch.ones(32)
    assert rms_norm.rms_norm(x, weight, 1e-6).shape == (0, 32)
    assert [part.shape for part in rms_norm.add_rms_norm(x, x, weight, 1e-6)] == [(0, 32)] * 2
    rope.rope_(torch.empty(0, 2, 32), torch.empty(0, 16), torch.empty(0, 16), interleaved=True)
    assert sampling.sample(x, Draws.of([], [], torch.device("cpu"))).tolist() == []
