"""Safetensors files as the format's library writes them, and damaged ones."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import InvalidRequest
from paceline.model.safetensors import SafetensorsDirectory


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    a, b = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(5, np.float16)
    safetensors.numpy.save_file({"a": a, "b": b}, tmp_path / "model.safetensors", {"format": "np"})
    found = SafetensorsDirectory(tmp_path)
    assert np.array_equal(found.tensor("a").float32(0, 3), a)
    assert (found.tensor("a").dtype, found.tensor("b").dtype, found.tensor("b").shape) == ("F32", "F16", (5,))
    with pytest.raises(InvalidRequest, match="tensor c is missing"):
        found.tensor("c")


def test_other_types_are_refused_when_read(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(4, np.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidRequest, match="tensor a has type I64, none of F32, F16, BF16"):
        SafetensorsDirectory(tmp_path).tensor("a")


def test_reads_arrays_of_every_type_that_quantized_weights_have(tmp_path: Path) -> None:
    tensors = {
        "F32": torch.tensor([[1.5, -2.0]]),
        "F16": torch.tensor([[1.5, -2.0]]).half(),
        "BF16": torch.tensor([[1.5, -2.0]]).bfloat16(),
        "F8_E4M3": torch.tensor([[1.5, -2.0]]).to(torch.float8_e4m3fn),
        "F8_E8M0": torch.tensor([[2.0, 0.5]]).to(torch.float8_e8m0fnu),
        "I64": torch.tensor([[2**40, -1]]),
        "I32": torch.tensor([[2**30, -1]], dtype=torch.int32),
        "I8": torch.tensor([[127, -1]], dtype=torch.int8),
        "U8": torch.tensor([[200, 1]], dtype=torch.uint8),
        "scalar": torch.tensor(3.0),
    }
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    found = SafetensorsDirectory(tmp_path)
    for name, expected in tensors.items():
        array = found.array(name)
        bits = {"BF16": torch.uint16, "F8_E4M3": torch.uint8, "F8_E8M0": torch.uint8}.get(name)
        assert array.dtype == found.dtype(name) == {"scalar": "F32"}.get(name, name)
        assert np.array_equal(array.values, (expected if bits is None else expected.view(bits)).numpy())
        assert array.values.shape == expected.shape
        assert not array.values.flags.writeable
    assert "U8" in found
    assert "U16" not in found
    assert found.dtype("U16") is None


def test_arrays_that_are_not_as_required_name_file_tensor_and_reason(tmp_path: Path) -> None:
    safetensors.numpy.save_file(
        {"a": np.ones((2, 3), np.int32), "b": np.ones(3, np.uint64)}, tmp_path / "model.safetensors"
    )
    found = SafetensorsDirectory(tmp_path)
    assert found.array("a").require((2, 3), "U8", "I32").sum() == 6
    with pytest.raises(
        InvalidRequest, match=r"model\.safetensors: tensor a has type I32, expected F32 or F16"
    ):
        found.array("a").require((2, 3), "F32", "F16")
    with pytest.raises(InvalidRequest, match=r"safetensors: tensor a has shape \(2, 3\), expected \(3, 2\)"):
        found.array("a").require((3, 2), "I32")
    with pytest.raises(InvalidRequest, match="tensor b has type U64, none of F32"):
        found.array("b")
    with pytest.raises(InvalidRequest, match="tensor c is missing"):
        found.array("c")


def test_truncated_shards_name_the_tensor_that_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)}, path)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-3])
    found = SafetensorsDirectory(tmp_path)
    for read in (found.array, found.tensor):
        with pytest.raises(InvalidRequest, match=r"model\.safetensors is truncated or damaged: tensor b"):
            read("b")
    assert found.array("a").values.sum() == 4


def test_misaligned_tensors_are_read(tmp_path: Path) -> None:
    entry = {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]}
    for padding in range(4):
        head = json.dumps({"a": entry}).encode() + b" " * padding
        directory = tmp_path / str(padding)
        directory.mkdir()
        data = np.array([7, -9], "<i4").tobytes()
        (directory / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
        values = SafetensorsDirectory(directory).array("a").values
        assert values.tolist() == [7, -9]
        assert values.flags.aligned


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, r"gone\.safetensors cannot be read"),
        ({"weight_map": {"a": "../../etc/passwd"}}, "names files outside its directory"),
        ({"weight_map": {"a": 7}}, "expected strings only"),
    ],
)
def test_index(index: object, reason: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidRequest, match=reason):
        SafetensorsDirectory(tmp_path)


def two_files(directory: Path) -> None:
    for name, value in (("one", 1), ("two", 2)):
        safetensors.numpy.save_file(
            {"a": np.full(3, value, np.int32), name: np.ones(1)}, directory / f"{name}.safetensors"
        )


@pytest.mark.parametrize(("file", "expected"), [("one.safetensors", 1), ("two.safetensors", 2)])
def test_the_index_says_which_of_two_files_counts(file: str, expected: int, tmp_path: Path) -> None:
    two_files(tmp_path)
    index = {"weight_map": {"a": file, "one": "one.safetensors", "two": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert SafetensorsDirectory(tmp_path).array("a").values.tolist() == [expected] * 3


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    two_files(tmp_path)
    with pytest.raises(InvalidRequest, match=r"two\.safetensors: tensor a is in one\.safetensors too"):
        SafetensorsDirectory(tmp_path)


def test_empty_tensors_are_read(tmp_path: Path) -> None:
    """Some writers leave them where a module has no bias or no order of groups."""
    shapes = ((0,), (0, 4), (4, 0))
    tensors = {f"{shape}": np.zeros(shape, np.float32) for shape in shapes}
    safetensors.numpy.save_file(tensors | {"b": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    found = SafetensorsDirectory(tmp_path)
    for shape in shapes:
        assert found.array(f"{shape}").values.shape == found.tensor(f"{shape}").shape == shape
    assert found.tensor("b").float32(0, 1).tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("a", {"data_offsets": [-4, 0]}),
        ("a", {"data_offsets": [0, 4, 8]}),
        ("a", {"data_offsets": None}),
        ("a", {"shape": [1, -1]}),
        ("a", {"shape": [1.0]}),
        ("a", {"shape": [True]}),
        ("a", {"dtype": ["F32"]}),
        ("\ud800", {}),
    ],
)
def test_a_damaged_header_names_file_and_tensor(
    name: str, changes: dict[str, object], tmp_path: Path
) -> None:
    head = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changes}).encode()
    data = len(head).to_bytes(8, "little") + head + bytes(4)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(InvalidRequest) as refused:
        SafetensorsDirectory(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/model.safetensors is damaged: tensor {name!r} is {{")


HEADERS = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "I64", "Q4_0", "X"]),
            "shape": st.lists(st.integers(-1, 5), max_size=3) | st.just([2**62, 2**62]),
            "data_offsets": st.lists(st.integers(-1, 40), max_size=3) | st.just([0, 2**62]),
        }
    )
    | st.integers()
    | st.none(),
)


@given(
    header=HEADERS | st.binary(max_size=40),
    length=st.none() | st.integers(0, 2**64 - 1),
    data=st.binary(max_size=64),
)
def test_damage_is_refused_and_nothing_else(
    header: object, length: int | None, data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path_factory.getbasetemp() / "damaged" / "model.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes((len(head) if length is None else length).to_bytes(8, "little") + head + data)
    for name in ("a", "b"):
        with contextlib.suppress(InvalidRequest):
            array = SafetensorsDirectory(path.parent).array(name).values
            assert array.size == np.prod(array.shape)
        with contextlib.suppress(InvalidRequest):
            tensor = SafetensorsDirectory(path.parent).tensor(name)
            assert tensor.float32(0, tensor.data.shape[0]).size == np.prod(tensor.shape)
