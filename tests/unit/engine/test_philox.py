"""Known answers of the reference implementation, Random123 1.14 (kat_vectors, philox4x32 with 10 rounds)."""

import pytest

from paceline.engine.philox import philox4x32, uniform


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == expected


def test_a_uniform_takes_the_high_53_bits_of_two_words() -> None:
    assert uniform(0, 0) == (0x6627E8D5E169C58D >> 11) / 2**53


def test_a_uniform_depends_on_seed_position_and_draw() -> None:
    draws = {uniform(seed, position, draw) for seed in range(3) for position in range(3) for draw in range(3)}
    assert len(draws) == 27
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)
