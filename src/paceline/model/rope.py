"""Frequencies of the rotary embedding, with the scaling that stretches a context."""

import math

import numpy as np
import numpy.typing as npt

from paceline.model.config import FactorsRope, LinearRope, Llama3Rope, Rope, YarnRope

Float64 = npt.NDArray[np.float64]


def inverse_frequencies(rope: Rope) -> tuple[Float64, float]:
    """Radians per position, float64 [rope.dim / 2], and what cosine and sine are multiplied by."""
    exponents = np.arange(0, rope.dim, 2) / rope.dim
    frequencies = rope.theta**-exponents
    match rope.scaling:
        case None:
            return frequencies, 1.0
        case LinearRope(factor):
            return frequencies / factor, 1.0
        case FactorsRope(factors):
            return frequencies / np.array(factors), 1.0
        case Llama3Rope() as scaling:
            return _llama3(frequencies, scaling), 1.0
        case YarnRope() as scaling:
            return _yarn(frequencies, scaling, rope.theta), scaling.attention_factor


def _llama3(frequencies: Float64, scaling: Llama3Rope) -> Float64:
    """Waves that fit the original context often enough are kept, those longer than it are stretched by `factor`."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    # Llama 4 has equal factors: nothing lies between.
    between = max(scaling.high_freq_factor - scaling.low_freq_factor, 1e-6)
    kept = (turns - scaling.low_freq_factor) / between
    return _blend(frequencies, frequencies / scaling.factor, np.clip(kept, 0.0, 1.0))


def _yarn(frequencies: Float64, scaling: YarnRope, theta: float) -> Float64:
    dim = 2 * len(frequencies)

    def index_of(turns: float) -> float:
        """The frequency, as a fractional index, that turns so often within the original context."""
        return dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (np.arange(len(frequencies)) - low) / max(high - low, 0.001)
    return _blend(frequencies, frequencies / scaling.factor, 1.0 - np.clip(ramp, 0.0, 1.0))


def _blend(kept: Float64, stretched: Float64, share: Float64) -> Float64:
    return stretched * (1.0 - share) + kept * share
