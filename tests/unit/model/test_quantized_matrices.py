"""Matrices in the precisions that checkpoints are published in, against the libraries that define them or by hand."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from torch import Tensor
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from paceline.contracts.errors import InvalidRequest
from paceline.model.floats import Float32
from paceline.model.quantized.formats import Format, Fp4Format, Fp8Format, Int4Format
from paceline.model.quantized.int4 import Int4Matrix
from paceline.model.quantized.matrices import StoredMatrix, open_experts, open_matrix
from paceline.model.quantized.patterns import Patterns
from paceline.model.quantized.scheme import Rule, Scheme
from paceline.model.safetensors import SafetensorsDirectory

NAME = "model.layers.0.mlp.experts.3.gate_proj"


def scheme(found: Format) -> Scheme:
    everything = Patterns.parse(["re:"], Path())
    return Scheme((Rule(everything, found),), Patterns.parse((), Path()))


def opened(
    directory: Path, tensors: dict[str, Tensor], shape: tuple[int, int], found: Format
) -> StoredMatrix:
    """A file of the tensors of one module, whose names are given without it."""
    named = {f"{NAME}.{k}": v.contiguous() for k, v in tensors.items()}
    safetensors.torch.save_file(named, directory / "model.safetensors")
    return open_matrix(SafetensorsDirectory(directory), NAME, shape, scheme(found))


def assert_equal(matrix: StoredMatrix, expected: Tensor | Float32) -> None:
    """All rows, and some that begin and end within a word of eight."""
    values = np.asarray(expected, np.float32)
    rows = len(values)
    assert matrix.shape == values.shape
    assert np.array_equal(matrix.float32(0, rows), values)
    assert np.array_equal(matrix.float32(3, rows - 2), values[3 : rows - 2])


def weights(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def group_extremes(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    groups = weight.view(len(weight), -1, group)
    return groups.amin(-1), groups.amax(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 64, None])
def test_compressed_int4(symmetric: bool, group: int | None, dtype: torch.dtype, tmp_path: Path) -> None:
    """Packed by compressed-tensors; what it unpacks in the scales' type is our float32 rounded to it."""
    weight = weights(20, 64).to(dtype)
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    args = QuantizationArgs(num_bits=4, type="int", symmetric=symmetric, **strategy)
    scale, zero = calculate_qparams(*group_extremes(weight, group or 64), args)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    quantization = QuantizationScheme(targets=["Linear"], weights=args)
    state = compressor.compress(
        {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}, quantization
    )
    expected = compressor.decompress(dict(state), quantization)["weight"]
    assert expected.dtype == dtype
    matrix = opened(tmp_path, state, (20, 64), Int4Format("compressed-tensors", group, symmetric))
    assert isinstance(matrix, Int4Matrix)
    assert (matrix.symmetric, matrix.group) == (symmetric, group or 64)
    assert torch.equal(torch.from_numpy(matrix.float32(0, 20)).to(dtype), expected)
    assert torch.equal(torch.from_numpy(matrix.float32(3, 13)).to(dtype), expected[3:13])
    # Raw blocks are those of the file, without a copy of the codes.
    block = matrix.read(2, 9)
    assert np.array_equal(block.packed, state["weight_packed"][2:9])
    assert np.array_equal(block.scales, state["weight_scale"][2:9].float())
    stored = [v for k, v in state.items() if k != "weight_shape"]
    assert matrix.nbytes == sum(t.nbytes for t in stored)


def pack(codes: Tensor, order: list[int]) -> Tensor:
    """int64 [rows, 8 n] -> int32 [rows, n]: code `order[i]` of eight goes to bits 4 i, written out one by one."""
    words = torch.zeros(len(codes), codes.shape[1] // 8, dtype=torch.int64)
    for word in range(words.shape[1]):
        for i, source in enumerate(order):
            words[:, word] += codes[:, 8 * word + source] << 4 * i
    return torch.from_numpy(words.numpy().astype(np.uint32).view(np.int32))


IN_ORDER = list(range(8))


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq(version: str, act_order: bool, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    rows, columns, group = 16, 64, 16
    codes = torch.randint(0, 16, (rows, columns), generator=generator)
    zeros = torch.randint(0, 16, (rows, columns // group), generator=generator)
    zeros[0, 0] = 0
    scales = weights(rows, columns // group).half()
    g_idx = torch.arange(columns) // group
    if act_order:
        g_idx = g_idx[torch.randperm(columns, generator=generator)]
    stored_zeros = (zeros - 1) & 15 if version == "gptq" else zeros
    tensors = {
        "qweight": pack(codes, IN_ORDER).T,
        "qzeros": pack(stored_zeros.T, IN_ORDER),
        "scales": scales.T,
        "g_idx": g_idx.int(),
    }
    layout = Int4Format(version, group, symmetric=False)  # type: ignore[arg-type]
    matrix = opened(tmp_path, tensors, (rows, columns), layout)
    assert_equal(matrix, (codes - zeros[:, g_idx]) * scales[:, g_idx].float())
    assert isinstance(matrix, Int4Matrix)
    assert (matrix.columns is not None) == act_order
    order = matrix.columns if act_order else np.arange(columns)
    assert np.array_equal(matrix.read(0, rows).packed, pack(codes[:, order], IN_ORDER))


@pytest.mark.parametrize(("version", "stored"), [("gptq", 0x77777777), ("gptq_v2", 0x88888888 - 2**32)])
def test_symmetric_gptq_needs_no_zeros(version: str, stored: int, tmp_path: Path) -> None:
    codes = torch.randint(0, 16, (8, 16), generator=torch.Generator().manual_seed(3))
    tensors = {
        "qweight": pack(codes, IN_ORDER).T,
        "qzeros": torch.full((1, 1), stored, dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5).half(),
        "g_idx": torch.zeros(16, dtype=torch.int32),
    }
    matrix = opened(tmp_path, tensors, (8, 16), Int4Format(version, None, symmetric=True))  # type: ignore[arg-type]
    assert isinstance(matrix, Int4Matrix)
    assert matrix.symmetric
    assert matrix.read(0, 8).zeros is None
    assert_equal(matrix, (codes - 8) * 0.5)


def test_groups_of_unequal_size_are_refused(tmp_path: Path) -> None:
    tensors = {
        "qweight": torch.zeros(4, 8, dtype=torch.int32),
        "qzeros": torch.zeros(2, 1, dtype=torch.int32),
        "scales": torch.ones(2, 8).half(),
        "g_idx": torch.tensor([0] * 15 + [1] * 17, dtype=torch.int32),
    }
    with pytest.raises(InvalidRequest, match=r"g_idx does not divide 32 inputs into groups of 16"):
        opened(tmp_path, tensors, (8, 32), Int4Format("gptq", 16, symmetric=False))


@pytest.mark.parametrize("symmetric", [False, True])
def test_awq(symmetric: bool, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    rows, columns, group = 24, 64, 32
    codes = torch.randint(0, 16, (rows, columns), generator=generator)
    zeros = torch.randint(0, 16, (rows, columns // group), generator=generator)
    scales = weights(rows, columns // group).half()
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    tensors = {"qweight": pack(codes.T, order), "scales": scales.T}
    if symmetric:
        zeros = torch.full_like(zeros, 8)
    else:
        tensors["qzeros"] = pack(zeros.T, order)
    matrix = opened(tmp_path, tensors, (rows, columns), Int4Format("awq", group, symmetric))
    spread = torch.arange(columns) // group
    assert_equal(matrix, (codes - zeros[:, spread]) * scales[:, spread].float())
    assert isinstance(matrix, Int4Matrix)
    assert matrix.symmetric == symmetric
    assert np.array_equal(matrix.read(0, rows).packed, pack(codes, IN_ORDER))


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu])
def test_fp8_in_blocks(scale_dtype: torch.dtype, tmp_path: Path) -> None:
    """DeepSeek-V3's, with blocks cut off at both edges, as transformers multiplies it out."""
    weight = (weights(200, 300) * 100).to(torch.float8_e4m3fn)
    scale = torch.exp2(torch.randint(-9, 3, (2, 3), generator=torch.Generator().manual_seed(5)).float())
    scale = (scale if scale_dtype == torch.float8_e8m0fnu else scale * 1.1).to(scale_dtype)
    matrix = opened(
        tmp_path, {"weight": weight, "weight_scale_inv": scale}, (200, 300), Fp8Format((128, 128))
    )
    expected = _dequantize_fp8_weight(weight, scale.float(), [128, 128], torch.float32)
    assert_equal(matrix, expected)
    assert matrix.nbytes == weight.nbytes + scale.nbytes


@pytest.mark.parametrize("strategy", ["tensor", "channel", "block", "group"])
def test_compressed_fp8(strategy: str, tmp_path: Path) -> None:
    """Every granularity of compressed-tensors' float-quantized."""
    weight = weights(48, 64)
    shapes = {"tensor": (1, 1), "channel": (48, 1), "block": (3, 2), "group": (48, 4)}
    tiles = weight.reshape(shapes[strategy][0], -1, shapes[strategy][1], 64 // shapes[strategy][1])
    scale = tiles.abs().amax((1, 3)) / 448
    structure = [16, 32] if strategy == "block" else None
    group = 16 if strategy == "group" else None
    args = QuantizationArgs(
        num_bits=8,
        type="float",
        symmetric=True,
        strategy=strategy,
        block_structure=structure,
        group_size=group,
    )
    compressor = BaseCompressor.get_value_from_registry("float-quantized")
    quantization = QuantizationScheme(targets=["Linear"], weights=args)
    state = compressor.compress(
        {"weight": weight, "weight_scale": scale.reshape(-1) if strategy == "tensor" else scale}, quantization
    )
    expected = compressor.decompress(dict(state), quantization)["weight"]
    state["input_scale"] = torch.tensor([0.5])
    block = {"block": (16, 32), "group": (1, 16)}.get(strategy)
    assert_equal(opened(tmp_path, state, (48, 64), Fp8Format(block)), expected)


def test_nvfp4(tmp_path: Path) -> None:
    """Packed by compressed-tensors, and the same matrix under Model Optimizer's names."""
    weight = weights(8, 64)
    args = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
    global_scale = generate_gparam(weight.min(), weight.max())
    scale, _ = calculate_qparams(*group_extremes(weight, 16), args, global_scale=global_scale)
    compressor = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized")
    quantization = QuantizationScheme(targets=["Linear"], weights=args)
    tensors = {"weight": weight, "weight_scale": scale, "weight_global_scale": global_scale}
    state = compressor.compress(dict(tensors), quantization)
    state = {
        k: v.detach()
        for k, v in state.items()
        if k in ("weight_packed", "weight_scale", "weight_global_scale")
    }
    matrix = opened(tmp_path, state, (8, 64), Fp4Format("nvfp4"))
    # The library multiplies in bfloat16, with 8 bits, after rounding the quotient of the scales to it.
    expected = compressor.decompress(dict(state), quantization)["weight"].float().numpy()
    assert np.allclose(matrix.float32(0, 8), expected, rtol=2**-6, atol=0)
    # Half of the largest step, which is from 4 to 6, 6 being the largest of a group.
    assert np.abs(matrix.float32(0, 8) - weight.numpy()).max() < weight.abs().max() / 6
    assert np.array_equal(matrix.float32(3, 6), matrix.float32(0, 8)[3:6])

    renamed = {
        "weight": state["weight_packed"],
        "weight_scale": state["weight_scale"],
        "weight_scale_2": 1 / global_scale[0],
        "input_scale": torch.tensor(0.01),
    }
    (tmp_path / "modelopt").mkdir()
    other = opened(tmp_path / "modelopt", renamed, (8, 64), Fp4Format("nvfp4-modelopt"))
    assert np.allclose(other.float32(0, 8), matrix.float32(0, 8), rtol=1e-6, atol=0)


def test_nvfp4_by_hand(tmp_path: Path) -> None:
    packed = torch.tensor([[0x21, 0xF7] + [0] * 6, [0x98] + [0] * 7], dtype=torch.uint8)
    scale = torch.tensor([[2.0], [0.5]]).to(torch.float8_e4m3fn)
    tensors = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": torch.tensor([4.0])}
    matrix = opened(tmp_path, tensors, (2, 16), Fp4Format("nvfp4"))
    assert matrix.float32(0, 1)[0, :5].tolist() == [0.25, 0.5, 3.0, -3.0, 0.0]
    assert matrix.float32(1, 2)[0, :3].tolist() == [0.0, -0.0625, 0.0]
    assert matrix.nbytes == 16 + 2


def test_compressed_mxfp4(tmp_path: Path) -> None:
    weight = weights(4, 64)
    args = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32)
    scale = torch.exp2(torch.floor(torch.log2(weight.view(4, 2, 32).abs().amax(-1))) - 2)
    compressor = BaseCompressor.get_value_from_registry("mxfp4-pack-quantized")
    quantization = QuantizationScheme(targets=["Linear"], weights=args)
    state = compressor.compress({"weight": weight, "weight_scale": scale}, quantization)
    expected = compressor.decompress(dict(state), quantization)["weight"].float()
    matrix = opened(tmp_path, state, (4, 64), Fp4Format("mxfp4"))
    # Powers of two times two bits are exact in bfloat16.
    assert np.array_equal(matrix.float32(0, 4), expected)


def test_mxfp4_blocks_of_all_experts(tmp_path: Path) -> None:
    """gpt-oss's, as transformers expands them; transformers transposes, the file does not."""
    generator = torch.Generator().manual_seed(6)
    blocks = torch.randint(0, 256, (3, 8, 2, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 140, (3, 8, 2), generator=generator, dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    safetensors.torch.save_file(
        {f"{name}_blocks": blocks, f"{name}_scales": scales}, tmp_path / "model.safetensors"
    )
    source = SafetensorsDirectory(tmp_path)
    found = open_experts(source, name, (3, 8, 64), scheme(Fp4Format("mxfp4-blocks")))
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    for matrix, values in zip(found, expected, strict=True):
        assert_equal(matrix, values)
    assert sum(m.nbytes for m in found) == blocks.nbytes + scales.nbytes
    with pytest.raises(
        InvalidRequest, match="gate_up_proj, all experts in one tensor, is supported in MXFP4 only"
    ):
        open_experts(source, name, (3, 8, 64), scheme(Fp8Format(None)))


def test_floating_point_is_read_as_such_whatever_the_scheme(tmp_path: Path) -> None:
    weight = weights(8, 16).bfloat16()
    matrix = opened(tmp_path, {"weight": weight}, (8, 16), Int4Format("gptq", 16, symmetric=True))
    assert_equal(matrix, weight.float())


E4M3 = torch.zeros(8, 32).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("tensors", "found", "reason"),
    [
        ({}, Int4Format("compressed-tensors", 32, True), r"tensor .*gate_proj\.weight_packed is missing"),
        (
            {},
            Int4Format("compressed-tensors", 24, True),
            r"shape \(8, 32\) is not divisible into groups of 24",
        ),
        (
            {"weight_packed": torch.zeros(8, 3, dtype=torch.int32), "weight_scale": torch.ones(8, 1)},
            Int4Format("compressed-tensors", 32, True),
            r"model\.safetensors: tensor .*weight_packed has shape \(8, 3\), expected \(8, 4\)",
        ),
        (
            {
                "weight_packed": torch.zeros(8, 4, dtype=torch.int32),
                "weight_scale": torch.ones(8, 1),
                "weight_shape": torch.tensor([8, 31]),
            },
            Int4Format("compressed-tensors", 32, True),
            r"weight_shape says \[8, 31\], expected \[8, 32\]",
        ),
        ({"weight": E4M3}, Fp8Format(None), r"weight_scale is missing"),
        (
            {"weight": E4M3, "weight_scale": torch.ones(3)},
            Fp8Format(None),
            r"weight_scale has shape \(3,\), expected one scale or one for each of 8 rows",
        ),
        (
            {"weight": E4M3, "weight_scale_inv": torch.ones(2, 1)},
            Fp8Format((4, 16)),
            r"weight_scale_inv has shape \(2, 1\), expected \(2, 2\)",
        ),
        (
            {"weight": E4M3, "weight_scale": torch.tensor(float("nan"))},
            Fp8Format(None),
            r"weight_scale holds scales that are not finite",
        ),
        (
            {"weight": E4M3, "weight_scale": torch.tensor(1.0), "input_scale": torch.tensor(-1.0)},
            Fp8Format(None),
            r"input_scale is -1\.0, expected a positive number",
        ),
        (
            {"weight": torch.zeros(8, 16, dtype=torch.uint8), "weight_scale": torch.ones(8, 2)},
            Fp8Format(None),
            r"\.weight has type U8, expected F8_E4M3",
        ),
        ({}, Fp4Format("mxfp4-blocks"), r"gate_proj_blocks is missing"),
        (
            {
                "weight_packed": torch.zeros(8, 16, dtype=torch.uint8),
                "weight_scale": torch.ones(8, 2).to(torch.float8_e4m3fn),
                "weight_global_scale": torch.ones(2),
            },
            Fp4Format("nvfp4"),
            r"weight_global_scale has type F32 and shape \(2,\), expected one float",
        ),
    ],
)
def test_what_does_not_fit_names_file_tensor_and_reason(
    tensors: dict[str, Tensor], found: Format, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        opened(tmp_path, tensors | {"other": torch.ones(1)}, (8, 32), found)
