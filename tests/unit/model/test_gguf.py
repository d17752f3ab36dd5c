"""Files that the reference package writes are read exactly; damaged ones are refused and nothing else."""

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import InvalidRequest
from paceline.model.files import ModelFiles
from paceline.model.gguf import GgufFile
from paceline.model.tokenizer import Tokenizer
from tests.unit.model.files import QUANTS, write_gguf

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.rope.freq_base": 0.5,
    "some.flag": True,
    "some.text": "größe 🙂",
    "some.numbers": [3, 1, 2],
    "some.reals": [0.5, -1.0],
    "some.strings": ["", "a b", "日本"],
}


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = {f"t.{q}": (q, values(5, 64)) for q in QUANTS} | {"vector": ("F32", values(7))}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "whole.gguf", METADATA, tensors)


def test_metadata(whole: Path) -> None:
    file = GgufFile(whole)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 3
    assert file.metadata["llama.rope.freq_base"] == 0.5
    assert file.metadata["some.flag"] is True
    assert file.metadata["some.text"] == "größe 🙂"
    assert file.integers("some.numbers") == [3, 1, 2]
    assert file.strings("some.strings") == ["", "a b", "日本"]
    with pytest.raises(InvalidRequest, match=r"some\.reals is missing or no array of whole numbers"):
        file.integers("some.reals")
    with pytest.raises(InvalidRequest, match=r"absent is missing"):
        file.strings("absent")


@pytest.mark.parametrize("quant", QUANTS)
def test_dequantizes_exactly(quant: str, tmp_path: Path) -> None:
    """Bit for bit what the reference package makes of the same bytes, by rows as well."""
    original = values(6, 96, seed=3) * 5
    path = write_gguf(tmp_path / "m.gguf", METADATA, {"t": (quant, original)})
    expected = gguf.quants.dequantize(gguf.quants.quantize(original, QUANTS[quant]), QUANTS[quant])
    tensor = GgufFile(path).tensor("t")
    assert tensor.shape == (6, 96)
    assert np.array_equal(tensor.float32(0, 6), expected)
    assert np.array_equal(tensor.float32(2, 5), expected[2:5])


def test_vectors_are_one_row(whole: Path) -> None:
    tensor = GgufFile(whole).tensor("vector")
    assert tensor.shape == (7,)
    assert np.array_equal(tensor.float32(0, 1), values(7)[None])


def write_blocks(path: Path, quant: str, blocks: npt.NDArray[np.uint8]) -> GgufFile:
    """A file of one tensor `t`, whose rows of blocks are given."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", blocks, raw_dtype=gguf.GGMLQuantizationType[quant])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


# Bytes of a block, and where its float16 scales lie.
BLOCKS: dict[str, tuple[int, tuple[int, ...]]] = {
    "Q5_0": (22, (0,)),
    "Q5_1": (24, (0, 2)),
    "Q2_K": (84, (80, 82)),
    "Q3_K": (110, (108,)),
    "Q4_K": (144, (0, 2)),
    "Q5_K": (176, (0, 2)),
    "Q6_K": (210, (208,)),
    "MXFP4": (17, ()),
}


@pytest.mark.parametrize("quant", BLOCKS)
def test_dequantizes_any_block_exactly(quant: str, tmp_path: Path) -> None:
    """Random blocks reach every code, which quantized values need not."""
    width, scales = BLOCKS[quant]
    rng = np.random.default_rng(11)
    blocks = rng.integers(0, 256, (4, 5, width), np.uint8)
    for offset in scales:
        blocks[..., offset : offset + 2] = rng.normal(size=(4, 5, 1)).astype(np.float16).view(np.uint8)
    if quant == "MXFP4":
        # Here the package knows no NaN and multiplies by 2**128.
        blocks[..., 0] %= 255
    rows = blocks.reshape(4, -1)
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[quant])
    tensor = write_blocks(tmp_path / "m.gguf", quant, rows).tensor("t")
    assert tensor.shape == expected.shape
    assert np.array_equal(tensor.float32(0, 4), expected)
    assert np.array_equal(tensor.float32(1, 3), expected[1:3])


@pytest.mark.parametrize("quant", [*BLOCKS, "Q8_K"])
def test_truncated_blocks(quant: str, tmp_path: Path) -> None:
    """Each format has its own size: a byte less than it takes is seen, as are rows that are no blocks."""
    width = BLOCKS[quant][0] if quant in BLOCKS else 292
    file = write_blocks(tmp_path / "whole.gguf", quant, np.zeros((3, 2 * width), np.uint8))
    _, values = file.tensor("t").shape
    end = file.tensors["t"].start + 6 * width
    content = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "full.gguf").write_bytes(content[:end])
    assert GgufFile(tmp_path / "full.gguf").tensor("t").float32(0, 3).shape == (3, values)
    (tmp_path / "cut.gguf").write_bytes(content[: end - 1])
    with pytest.raises(InvalidRequest, match=r"cut\.gguf is truncated: tensor t ends behind the file"):
        GgufFile(tmp_path / "cut.gguf").tensor("t")
    longer = content.replace(values.to_bytes(8, "little"), (values + 1).to_bytes(8, "little"), 1)
    (tmp_path / "longer.gguf").write_bytes(longer)
    with pytest.raises(InvalidRequest, match=f"tensor t has rows of {values + 1}, no multiple of"):
        GgufFile(tmp_path / "longer.gguf").tensor("t")


def test_dequantizes_q8_k(tmp_path: Path) -> None:
    """The package cannot, but the format has only one scale; the sums at the end do not matter."""
    block = np.zeros(292, np.uint8)
    block[:4] = np.array([0.25], np.float32).view(np.uint8)
    block[4:260] = np.arange(-128, 128, dtype=np.int8).view(np.uint8)
    block[260:] = 255
    tensor = write_blocks(tmp_path / "m.gguf", "Q8_K", np.stack((block, block))).tensor("t")
    assert np.array_equal(tensor.float32(1, 2), [np.arange(-128, 128) / 4])


def test_unknown_tensor_types_are_refused_when_read(tmp_path: Path) -> None:
    file = write_blocks(tmp_path / "k.gguf", "TQ2_0", np.zeros((2, 66), np.uint8))
    with pytest.raises(InvalidRequest, match="tensor t has type 35, which is none of F32, F16"):
        file.tensor("t")
    with pytest.raises(InvalidRequest, match="tensor u is missing"):
        file.tensor("u")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"", "cannot be read"),
        (b"GGML", "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is neither 2 nor 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648 is neither"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "end behind the file"),
        # A count of strings that would fill the memory, were it believed.
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**60) + b"\0" * 80, "damaged"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**61), "end behind the file"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 9, 1), "array of type 9"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 1, 0, 1, b"t", 2**31), "2147483648 dimensions"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 2**39, 0, 2**50), "outside the file"),
        (b"GGUF" + struct.pack("<IQQQ17sII", 3, 0, 1, 17, b"general.alignment", 4, 0), "alignment 0"),
    ],
)
def test_hostile_heads(head: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(head)
    with pytest.raises(InvalidRequest, match=why):
        GgufFile(path)


def read_everything(path: Path) -> None:
    file = GgufFile(path)
    for name in file.tensors:
        tensor = file.tensor(name)
        tensor.float32(0, min(2, tensor.data.shape[0]))
    file.strings("some.strings")
    Tokenizer.load(ModelFiles("m", "gguf", path))


@given(data=st.data())
def test_damage_is_refused_and_nothing_else(
    data: st.DataObject, whole: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cut anywhere and overwritten anywhere, a file is read or refused."""
    content = bytearray(whole.read_bytes())
    del content[data.draw(st.integers(0, len(content)), label="length") :]
    patches = st.lists(st.tuples(st.integers(0, 700), st.binary(min_size=1, max_size=9)), max_size=3)
    for at, patch in data.draw(patches, label="patches"):
        content[at : at + len(patch)] = patch
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    # Written anew: a file that shrinks while it is mapped would kill its reader.
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    with contextlib.suppress(InvalidRequest):
        read_everything(path)


def test_truncated_tensor_data(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole.read_bytes()[:-20])
    file = GgufFile(path)
    file.tensor("t.Q8_0")
    with pytest.raises(InvalidRequest, match="truncated: tensor vector ends behind the file"):
        file.tensor("vector")
