"""Tokens drawn natively are those of `paceline.engine.sampling`."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from paceline.contracts.messages import Sampling
from paceline.engine.cpu.levels import Level
from paceline.engine.cpu.library import PlDraw
from paceline.engine.philox import uniform
from paceline.engine.sampling import sample
from paceline.engine.step import Float32, Int32
from tests.unit.engine_cpu.native import LEVELS, SHIMS, build

VOCAB = 49152
BELOW_ONE = 1.0 - 2.0**-53


@pytest.fixture(params=LEVELS)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    level: Level = request.param
    return build(SHIMS / "draw.cpp", level)


def draws(library: ctypes.CDLL, logits: Float32, sampling: Sampling, us: Sequence[float]) -> list[int]:
    how = PlDraw(sampling.temperature, sampling.top_p, sampling.min_p, 0, sampling.top_k, 1)
    numbers = np.array(us)
    tokens: Int32 = np.empty(len(us), dtype=np.int32)
    library.draw_tokens(
        _pointer(logits), len(logits), ctypes.byref(how), _pointer(numbers), len(us), _pointer(tokens)
    )
    return [int(token) for token in tokens]


def expected(logits: Float32, sampling: Sampling, positions: range) -> list[int]:
    return [sample(logits, sampling, position, None) for position in positions]


def random_logits(seed: int, vocab: int, spread: float = 3.5) -> Float32:
    return np.random.default_rng(seed).normal(0.0, spread, vocab).astype(np.float32)


def _pointer(array: npt.NDArray[np.float32 | np.float64 | np.int32]) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.5, 30.0])
@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 1000])
def test_every_filter_keeps_the_same_tokens(library: ctypes.CDLL, vocab: int, spread: float) -> None:
    """The draws of a request at two hundred positions, of which a wrong set or order would change some."""
    logits = random_logits(vocab, vocab, spread)
    positions = range(200)
    filters: list[dict[str, Any]] = [
        {}, {"temperature": 0.3}, {"temperature": 2.0}, {"top_k": 1}, {"top_k": 5}, {"top_k": 40}, {"top_p": 0.1},
        {"top_p": 0.9}, {"top_p": 0.999}, {"min_p": 0.2}, {"top_k": 500, "top_p": 0.8},
        {"top_k": 20, "top_p": 0.7, "min_p": 0.05, "temperature": 1.3},
    ]  # fmt: skip
    for i, kwargs in enumerate(filters):
        sampling = Sampling(max_tokens=1, seed=i, **kwargs)
        us = [uniform(i, position) for position in positions]
        assert draws(library, logits, sampling, us) == expected(logits, sampling, positions), kwargs


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=1, temperature=0.8, seed=1),
        Sampling(max_tokens=1, temperature=0.7, top_k=20, top_p=0.8, seed=2),
        Sampling(max_tokens=1, top_p=0.95, seed=3),
        Sampling(max_tokens=1, min_p=0.05, seed=4),
        Sampling(max_tokens=1, top_k=20000, seed=5),  # more than there are blocks
        Sampling(max_tokens=1, temperature=0.0, seed=6),
    ],
)
def test_a_whole_vocabulary_gives_the_same_tokens(library: ctypes.CDLL, sampling: Sampling) -> None:
    positions = range(20)
    us = [uniform(sampling.seed, position) for position in positions]
    for spread in (1.0, 3.5):
        logits = random_logits(sampling.seed, VOCAB, spread)
        assert draws(library, logits, sampling, us) == expected(logits, sampling, positions)


def test_equal_weights_are_kept_together(library: ctypes.CDLL) -> None:
    logits = np.zeros(300, dtype=np.float32)
    logits[[7, 100, 250]] = 5.0
    us = [i / 999 for i in range(999)]
    filters: list[dict[str, Any]] = [
        {"top_k": 1}, {"top_k": 2}, {"top_p": 0.01}, {"top_p": 0.5, "top_k": 3}, {"min_p": 0.9}
    ]  # fmt: skip
    for kwargs in filters:
        tokens = draws(library, logits, Sampling(max_tokens=1, **kwargs), us)
        assert tokens == [7] * 333 + [100] * 333 + [250] * 333, kwargs
    assert set(draws(library, logits, Sampling(max_tokens=1, top_k=4), us)) > {7, 100, 250}
    assert draws(library, logits, Sampling(max_tokens=1, temperature=0.0), [0.5]) == [7]


@pytest.mark.parametrize("vocab", [1, 64, 130])
@pytest.mark.parametrize("top_p", [1.0, 0.999999])
def test_no_number_draws_what_cannot_be_drawn(library: ctypes.CDLL, vocab: int, top_p: float) -> None:
    logits = np.full(vocab, -np.inf, dtype=np.float32)
    possible = [vocab // 2] if vocab == 1 else [1, vocab // 2, vocab - 2]
    logits[possible] = np.linspace(1.0, 2.0, len(possible))
    us = [0.0, 1e-300, 0.3, 0.999, BELOW_ONE]
    tokens = draws(library, logits, Sampling(max_tokens=1, top_p=top_p), us)
    assert (tokens[0], tokens[-1]) == (possible[0], possible[-1])
    assert set(tokens) <= set(possible)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-5, 1e300])
def test_extreme_temperatures_give_what_they_mean(library: ctypes.CDLL, temperature: float) -> None:
    logits = random_logits(0, 1000)
    (token,) = draws(library, logits, Sampling(max_tokens=1, temperature=temperature), [0.5])
    assert token == (int(logits.argmax()) if temperature < 1.0 else 500)


@pytest.mark.parametrize("place", [0, 40, 63, 64, 99])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_logits_without_a_distribution_give_no_token(
    library: ctypes.CDLL, bad: float, temperature: float, place: int
) -> None:
    logits = random_logits(0, 100)
    sampling = Sampling(max_tokens=1, temperature=temperature, top_k=3, top_p=0.9)
    logits[place] = bad
    assert draws(library, logits, sampling, [0.5]) == [-1]
    assert draws(library, np.full(100, -np.inf, dtype=np.float32), sampling, [0.5]) == [-1]
    logits[place] = -np.inf  # never drawn, which is no reason against the others
    assert draws(library, logits, sampling, [0.5])[0] >= 0


def test_the_exponential_is_accurate(library: ctypes.CDLL) -> None:
    x = np.concatenate([np.linspace(-708.0, 0.0, 70000), -np.logspace(-300, 2.8, 10000), np.zeros(16)])
    result = np.empty_like(x)
    library.exponentials(_pointer(x), len(x), _pointer(result))
    assert np.abs(result / np.exp(x) - 1.0).max() < 1e-13
    assert (result[-16:] == 1.0).all()


def test_random_numbers_are_the_same_bit_for_bit(library: ctypes.CDLL) -> None:
    native = library.uniform
    native.argtypes, native.restype = (ctypes.c_uint64, ctypes.c_uint32), ctypes.c_double
    for seed in (0, 1, -1, 2**40 + 7, 2**63):
        for position in (0, 1, 1000, 2**31):
            assert native(seed % 2**64, position) == uniform(seed, position)
