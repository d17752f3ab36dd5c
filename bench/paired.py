"""How far a variant is from a reference that did the same items: a mean difference and its confidence interval.

Pairs take out what makes one item harder than another, which is most of the scatter: differences far smaller than the
uncertainty of either figure can be told apart from nothing.
"""

from dataclasses import dataclass
from math import expm1, sqrt
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Float64: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

CONFIDENCE = 0.95
FEWEST = 4
"""Items that an interval of means needs: below three degrees of freedom the series of `student` is no good."""

_NORMAL = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


@dataclass(frozen=True)
class Interval:
    """A difference to the reference, and the ends of its 95% confidence interval."""

    mean: float
    low: float
    high: float

    def expm1(self) -> "Interval":
        """Of logarithms of ratios, the relative differences exp(x) - 1."""
        return Interval(expm1(self.mean), expm1(self.low), expm1(self.high))


def student(degrees: int) -> float:
    """The quantile of Student's t that bounds `CONFIDENCE` on both sides.

    With z that of the normal distribution and v = `degrees`, at least 3 (Abramowitz and Stegun 26.7.5, 0.3% or better):

        t = z + (z^3 + z) / 4 v + (5 z^5 + 16 z^3 + 3 z) / 96 v^2 + (3 z^7 + 19 z^5 + 17 z^3 - 15 z) / 384 v^3
              + (79 z^9 + 776 z^7 + 1482 z^5 - 1920 z^3 - 945 z) / 92160 v^4
    """
    z, v = _NORMAL, degrees
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def difference_of_means(found: Float64, reference: Float64) -> Interval:
    """Of values [n] that belong to independent items: with d = found - reference, and s its deviation,

        mean(d) +- t(n - 1) s / sqrt(n),  s^2 = sum((d - mean(d))^2) / (n - 1)

    Raises `ValueError` for fewer than `FEWEST` items.
    """
    n = len(found)
    if n < FEWEST:
        raise ValueError(f"{n} items are too few for an interval, which takes {FEWEST}")
    d = found - reference
    mean = float(d.mean())
    half = student(n - 1) * float(d.std(ddof=1)) / sqrt(n)
    return Interval(mean, mean - half, mean + half)


def difference_of_shares(found: Bools, reference: Bools) -> Interval:
    """Of right answers [n], from the items that only one of both has right: b gained, c lost. The mean is (b - c) / n.

    The interval is Wald's for paired shares with half an item added to each of the four cases (Agresti and Min 2005),
    so that it has a width even where no answer changed:

        D +- z sqrt(((b + c + 1) / (n + 2) - D^2) / (n + 2)),  D = (b - c) / (n + 2)
    """
    n = len(found)
    gained = int(np.count_nonzero(found & ~reference))
    lost = int(np.count_nonzero(reference & ~found))
    centre = (gained - lost) / (n + 2)
    half = _NORMAL * sqrt(((gained + lost + 1) / (n + 2) - centre**2) / (n + 2))
    return Interval((gained - lost) / n, centre - half, centre + half)
