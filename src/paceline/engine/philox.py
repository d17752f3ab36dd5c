"""Counter-based random numbers: Philox4x32-10.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A number depends on its key and
counter alone, so that a sampled token does not depend on the batch, the engine or the worker that made it. The same
generator is at hand on GPUs.
"""

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds over four 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int, draw: int = 0) -> float:
    """A float in [0, 1) with 53 random bits for one draw at one position of the sequence seeded with `seed`."""
    seed &= (1 << 64) - 1
    high, low, _, _ = philox4x32((position & _MASK, draw, 0, 0), (seed & _MASK, seed >> 32))
    return float(((high << 32 | low) >> 11) * 2.0**-53)
