"""Packing of 4-bit codes, as properties."""

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from paceline.model.quantized.nibbles import pack, transpose, unpack

WORDS = arrays(np.int32, array_shapes(min_dims=1, max_dims=3, max_side=5))


@given(words=WORDS)
def test_packing_undoes_unpacking(words: npt.NDArray[np.int32]) -> None:
    codes = unpack(words)
    assert codes.shape == (*words.shape[:-1], 8 * words.shape[-1])
    assert codes.max() < 16
    assert np.array_equal(pack(codes), words)
    # Views in another order too.
    assert np.array_equal(pack(unpack(words.T).T.copy().T), words.T)


@given(words=WORDS)
def test_the_lowest_bits_come_first(words: npt.NDArray[np.int32]) -> None:
    codes = unpack(words).reshape(*words.shape, 8)
    for i in range(8):
        assert np.array_equal(codes[..., i], words >> 4 * i & 15)


@given(words=arrays(np.int32, st.tuples(st.just(8), st.integers(1, 3), st.integers(1, 4))))
def test_transposing_swaps_words_and_codes(words: npt.NDArray[np.int32]) -> None:
    before = unpack(words[..., None])
    after = unpack(transpose(words)[..., None])
    assert np.array_equal(after, before.transpose(3, 1, 2, 0))
