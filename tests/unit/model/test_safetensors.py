"""Safetensors files as the format's library writes them, and damaged ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
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


HEADERS = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "Q4_0", "X"]),
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
        try:
            tensor = SafetensorsDirectory(path.parent).tensor(name)
        except InvalidRequest:
            continue
        assert tensor.float32(0, tensor.data.shape[0]).size == np.prod(tensor.shape)
