"""Tensors of quantized matrices with damaged headers are read or refused by file and name, whatever their bytes are."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.errors import InvalidRequest
from paceline.model.quantized.configuration import parse_scheme
from paceline.model.quantized.matrices import StoredMatrix, open_experts, open_matrix
from paceline.model.quantized.scheme import Scheme
from paceline.model.safetensors import SafetensorsDirectory

Header: TypeAlias = dict[str, dict[str, Any]]

NAME = "model.layers.0.mlp.experts.3.up_proj"
ROWS, COLUMNS, EXPERTS = 16, 64, 3
BYTES = {"F32": 4, "I64": 8, "I32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "F64": 8}


def compressed(name: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": {"group_0": group}}


INT4 = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)
FP8 = compressed("float-quantized", num_bits=8, type="float", strategy="channel")
NVFP4 = compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16)
TRANSPOSED = {"scales": ("F16", (2, ROWS)), "qzeros": ("I32", (2, 2))}
# The configuration, and the tensors of a sound matrix.
FORMATS: list[tuple[dict[str, Any], Mapping[str, tuple[str, tuple[int, ...]]]]] = [
    (
        INT4,
        {
            ".weight_packed": ("I32", (ROWS, 8)),
            ".weight_scale": ("BF16", (ROWS, 2)),
            ".weight_zero_point": ("I32", (2, 2)),
            ".weight_shape": ("I64", (2,)),
            ".weight_g_idx": ("I32", (COLUMNS,)),
        },
    ),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False},
        {".qweight": ("I32", (8, ROWS)), ".g_idx": ("I32", (COLUMNS,))}
        | {f".{name}": entry for name, entry in TRANSPOSED.items()},
    ),
    (
        {"quant_method": "awq", "bits": 4, "group_size": 32},
        {".qweight": ("I32", (COLUMNS, 2))} | {f".{name}": entry for name, entry in TRANSPOSED.items()},
    ),
    (
        {"quant_method": "fp8", "weight_block_size": [16, 16]},
        {".weight": ("F8_E4M3", (ROWS, COLUMNS)), ".weight_scale_inv": ("F32", (1, 4))},
    ),
    (FP8, {".weight": ("F8_E4M3", (ROWS, COLUMNS)), ".weight_scale": ("F32", (ROWS, 1))}),
    (
        NVFP4,
        {
            ".weight_packed": ("U8", (ROWS, 32)),
            ".weight_scale": ("F8_E4M3", (ROWS, 4)),
            ".weight_global_scale": ("F32", (1,)),
        },
    ),
    (
        {"quant_method": "mxfp4"},
        {"_blocks": ("U8", (EXPERTS, ROWS, 2, 16)), "_scales": ("U8", (EXPERTS, ROWS, 2))},
    ),
]
SHAPES = st.lists(st.sampled_from([0, 1, 2, 8, ROWS, COLUMNS, 2**40, -1]), max_size=4)
OFFSETS = st.lists(st.sampled_from([-1, 0, 8, 1000, 2**63]), min_size=1, max_size=3)
CHANGES = st.one_of(
    st.fixed_dictionaries({"dtype": st.sampled_from(list(BYTES))}),
    st.fixed_dictionaries({"shape": SHAPES}),
    st.fixed_dictionaries({"data_offsets": OFFSETS}),
)


def sound(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[Header, bytes]:
    """Groups are in order and the shape is right; all else is bytes of every kind."""
    header: Header = {}
    data = b""
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * BYTES[dtype]
        bits = np.random.default_rng(len(header)).integers(0, 256, size, np.uint8).tobytes()
        if name.endswith("g_idx"):
            bits = (np.arange(COLUMNS, dtype="<i4")[::-1] // 32).tobytes()
        elif name == ".weight_shape":
            bits = np.array([ROWS, COLUMNS], "<i8").tobytes()
        elif BYTES[dtype] in (2, 4) and dtype != "I32":
            bits = np.ones(shape, {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[dtype]).tobytes()
        header[NAME + name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bits
    return header, data


def read(directory: Path, header: Header, data: bytes, scheme: Scheme) -> list[StoredMatrix]:
    head = json.dumps(header).encode()
    path = directory / "model.safetensors"
    # Written anew: a file that shrinks while it is mapped would kill its reader.
    path.unlink(missing_ok=True)
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    source = SafetensorsDirectory(directory)
    if f"{NAME}_blocks" in header:
        return [*open_experts(source, NAME, (EXPERTS, ROWS, COLUMNS), scheme)]
    return [open_matrix(source, NAME, (ROWS, COLUMNS), scheme)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damage")


@pytest.mark.parametrize("form", range(len(FORMATS)))
def test_sound_ones_are_read(form: int, directory: Path) -> None:
    config, tensors = FORMATS[form]
    for matrix in read(directory, *sound(tensors), parse_scheme(config, Path("config.json"))):
        with np.errstate(all="ignore"):
            assert matrix.float32(0, ROWS).shape == (ROWS, COLUMNS)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_damage_is_refused_and_nothing_else(data: st.DataObject, directory: Path) -> None:
    config, tensors = data.draw(st.sampled_from(FORMATS))
    header, content = sound(tensors)
    for name in data.draw(st.lists(st.sampled_from(list(header)), min_size=1, max_size=2, unique=True)):
        if (changes := data.draw(st.none() | CHANGES)) is None:
            del header[name]
        else:
            header[name] |= changes
    content = content[: data.draw(st.sampled_from([len(content), len(content) - 1, 0]))]
    refusal = ""
    try:
        matrices = read(directory, header, content, parse_scheme(config, Path("config.json")))
    except InvalidRequest as e:
        refusal = str(e)
    if refusal:
        assert refusal.startswith(str(directory))
        assert NAME in refusal
        return
    for matrix in matrices:
        with np.errstate(all="ignore"):
            assert matrix.float32(0, ROWS).shape == (ROWS, COLUMNS)
            assert matrix.float32(3, 5).shape == (2, COLUMNS)
