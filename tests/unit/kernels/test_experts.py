"""Expert layers against a loop over tokens and choices in float64, then the kernel against the plain form."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.engine.torch.kernels.expert_blocks.triton import align
from paceline.engine.torch.kernels.experts import (
    Activation,
    DenseExperts,
    ExpertLayer,
    Experts,
    Fp8Experts,
    Int4Experts,
    experts,
    naive,
    triton,
)
from paceline.engine.torch.kernels.fp4_linear.experts import Fp4Experts

EXPERTS = 5
UNUSED = 3  # an expert that no row chooses


def matrix(form: str, rows: int, columns: int, group: int = 32) -> Experts:
    """Random weights of some 1 / sqrt(columns)."""
    scale = columns**-0.5
    match form:
        case "dense":
            return DenseExperts(scale * torch.randn(EXPERTS, rows, columns))
        case "fp8":
            block = (16, 128)
            blocks = (EXPERTS, -(-rows // block[0]), -(-columns // block[1]))
            weight = torch.randn(EXPERTS, rows, columns).to(torch.float8_e4m3fn)
            return Fp8Experts(weight, scale * torch.rand(blocks), block)
        case "mxfp4" | "nvfp4":
            codes = torch.randint(0, 256, (EXPERTS, rows, columns // 2), dtype=torch.uint8)
            shape = (EXPERTS, rows, columns // (32 if form == "mxfp4" else 16))
            exponents = torch.randint(118, 125, shape, dtype=torch.uint8).view(torch.float8_e8m0fnu)
            scales = exponents if form == "mxfp4" else torch.rand(shape).to(torch.float8_e4m3fn)
            return Fp4Experts(codes, scales, scale + torch.rand(EXPERTS, rows))
    bits = torch.randint(-(2**31), 2**31, (EXPERTS, rows, columns // 8), dtype=torch.int32)
    scales = 0.4 * scale * torch.rand(EXPERTS, rows, columns // group)
    zeros = torch.randint(0, 16, scales.shape, dtype=torch.uint8) if form == "int4 with zeros" else None
    return Int4Experts(bits, scales, zeros)


def routing(tokens: int, per_token: int) -> tuple[Tensor, Tensor]:
    used = [e for e in range(EXPERTS) if e != UNUSED]
    choices = [np.random.default_rng(t).permutation(used)[:per_token] for t in range(tokens)]
    return torch.from_numpy(np.stack(choices)), torch.rand(tokens, per_token)


def layer_of(
    form: str, hidden: int, inner: int, activation: Activation = "silu", *, biases: bool = False,
    scale_input: bool = False, group: int = 32,
) -> ExpertLayer:  # fmt: skip
    torch.manual_seed(hidden + inner)
    return ExpertLayer(
        matrix(form, 2 * inner, hidden, group),
        matrix(form, hidden, inner, min(group, inner)),
        activation,
        3 * torch.randn(EXPERTS, 2 * inner) if biases else None,
        torch.randn(EXPERTS, hidden) if biases else None,
        scale_input,
    )


def expanded(matrix: Experts, expert: int) -> Tensor:
    """Its weights, float32 [out, in]: products with unit vectors are exact."""
    return matrix.product(torch.eye(matrix.shape[2]), expert).T


def by_definition(x: Tensor, expert_ids: Tensor, weights: Tensor, layer: ExpertLayer) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, choices in enumerate(expert_ids.tolist()):
        for share, e in zip(weights[t].tolist(), choices, strict=True):
            row = x[t].double() * (share if layer.scale_input else 1.0)
            both = expanded(layer.gate_up, e).double() @ row
            if layer.gate_up_bias is not None:
                both += layer.gate_up_bias[e]
            if layer.activation == "silu":
                gate, up = both[: len(both) // 2], both[len(both) // 2 :]
                inner = gate / (1 + torch.exp(-gate)) * up
            else:
                gate, up = both[0::2].minimum(torch.tensor(7.0)), both[1::2].clip(-7, 7)
                inner = (up + 1) * gate / (1 + torch.exp(-1.702 * gate))
            result = expanded(layer.down, e).double() @ inner
            if layer.down_bias is not None:
                result += layer.down_bias[e]
            out[t] += result * (1.0 if layer.scale_input else share)
    return out


@pytest.mark.parametrize("form", ["dense", "int4", "int4 with zeros", "fp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize(
    ("activation", "biases", "scale_input"),
    [("silu", False, False), ("gpt_oss", True, False), ("silu", False, True)],
)
def test_naive_is_the_definition(form: str, activation: Activation, biases: bool, scale_input: bool) -> None:
    layer = layer_of(form, 64, 32, activation, biases=biases, scale_input=scale_input)
    x, (ids, weights) = torch.randn(7, 64), routing(7, 2)
    expected = by_definition(x, ids, weights, layer)
    error = experts(x, ids, weights, layer).double() - expected
    # A value may be the small difference of large ones: what counts is the scale of all.
    assert error.abs().max() <= 1e-6 * expected.abs().max()


def test_rounding_activations_too_costs_what_three_bits_of_mantissa_cost() -> None:
    layer = layer_of("fp8", 256, 64)
    x, (ids, weights) = torch.randn(20, 256), routing(20, 2)
    exact = naive.experts(x, ids, weights, layer)
    error = (naive.experts_w8a8(x, ids, weights, layer) - exact).norm() / exact.norm()
    assert 0.01 < error < 0.08


def test_formats_agree_on_the_same_weights() -> None:
    int4 = Int4Experts(
        torch.tensor([[[0x76543210, -0x01234568]]], dtype=torch.int32), torch.tensor([[[0.5]]])
    )
    values = [*range(-8, 0), *range(8)]
    assert expanded(int4, 0).tolist() == [[v / 2 for v in values]]
    assert int4.shape == (1, 1, 16)
    fp8 = Fp8Experts(
        torch.tensor([[values]]).float().to(torch.float8_e4m3fn), torch.tensor([[[0.5]]]), (1, 16)
    )
    assert expanded(fp8, 0).tolist() == [[v / 2 for v in values]]


@pytest.mark.parametrize(
    ("form", "tokens", "per_token", "hidden", "inner", "group"),
    [
        ("dense", 1, 2, 72, 20, 32),
        ("dense", 100, 2, 72, 20, 32),  # several blocks for an expert, the last not full
        ("int4", 3, 1, 64, 64, 64),
        ("int4 with zeros", 17, 2, 128, 160, 32),
        ("int4", 2, 2, 384, 128, 128),
        ("fp8", 5, 2, 144, 24, 32),
        ("nvfp4", 3, 2, 144, 16, 32),
    ],
)
def test_triton_equals_naive(
    form: str, tokens: int, per_token: int, hidden: int, inner: int, group: int
) -> None:
    layer = layer_of(form, hidden, inner, group=group)
    x, (ids, weights) = torch.randn(tokens, hidden), routing(tokens, per_token)
    expected = naive.experts_w8a8(x, ids, weights, layer)
    torch.testing.assert_close(triton.experts(x, ids, weights, layer), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["dense", "int4", "mxfp4"])
@pytest.mark.parametrize("scale_input", [False, True])
def test_triton_equals_naive_for_gpt_oss_and_scaled_inputs(form: str, scale_input: bool) -> None:
    layer = layer_of(form, 64, 32, "gpt_oss", biases=True, scale_input=scale_input)
    x, (ids, weights) = 3 * torch.randn(6, 64), routing(6, 2)
    expected = naive.experts_w8a8(x, ids, weights, layer)
    torch.testing.assert_close(triton.experts(x, ids, weights, layer), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("version", [naive.experts, triton.experts], ids=["naive", "triton"])
def test_a_row_with_nan_stays_one_though_gpt_oss_clamps(version: Callable[..., Tensor]) -> None:
    layer = layer_of("dense", 64, 32, "gpt_oss", biases=True)
    x, (ids, weights) = torch.randn(6, 64), routing(6, 2)
    x[4, 7] = torch.nan
    assert version(x, ids, weights, layer).isnan().any(1).tolist() == [t == 4 for t in range(6)]


def test_blocks_belong_to_one_expert_and_hold_its_pairs_in_order() -> None:
    ids = torch.tensor([[0, 4], [4, 2], [4, 0], [4, 2]])
    slots, owners = align(ids, EXPERTS, 4)
    # At most: two for eight pairs, and one more for each expert.
    assert owners.tolist() == [0, 2, 4, -1, -1, -1, -1]
    assert slots.view(-1, 4)[:3].tolist() == [[0, 5, 8, 8], [3, 7, 8, 8], [1, 2, 4, 6]]
