"""Sampling on a GPU: one program per row, without sorting.

What top_k and top_p keep is everything from some weight on. That weight is found by its logit, whose bits are tried two
at a time from the highest: sixteen passes over the row, in each of which three sums say how the search goes on.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation
from paceline.engine.torch.kernels.sampling.draws import Draws


@triton.jit
def _uniform(seed, position):
    """As `paceline.engine.philox.uniform`."""
    zero = position & 0
    counter = (position & 0xFFFFFFFF).to(tl.uint32)
    high, low, _, _ = tl.philox(seed, counter, zero.to(tl.uint32), zero.to(tl.uint32), zero.to(tl.uint32))
    return ((high.to(tl.uint64) << 21) | (low.to(tl.uint64) >> 11)).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _likeliest(logits, vocab, BLOCK: tl.constexpr):
    """The largest logit and the first token that has it; NaN counts as the largest."""
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    where = tl.full((BLOCK,), vocab, tl.int64)
    odd = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        values = tl.load(logits + token, token < vocab, float("-inf"))
        better = values > best
        best, where = tl.where(better, values, best), tl.where(better, token, where)
        odd |= (values != values).to(tl.int32)
    top = tl.max(best)
    token = tl.min(tl.where(best == top, where, vocab))
    return tl.where(tl.max(odd) > 0, float("nan"), top), token


@triton.jit
def _weight(values, best, temperature, min_p):
    """Not normalized; the likeliest token has 1."""
    weight = tl.exp((values.to(tl.float64) - best.to(tl.float64)) / temperature)
    return tl.where(weight >= min_p, weight, 0.0)


@triton.jit
def _order(values):
    """int64 that are ordered as these float32 are, from 0 on."""
    bits = values.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def _value(order):
    """The inverse of `_order`."""
    bits = (order - 2147483648).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _reaching(logits, weights, vocab, target, floor, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit that, with those above it, reaches `target`: in number, or in weights from `floor` on."""
    found = tl.zeros((), tl.int64)
    for bit in range(30, -2, -2):
        step = tl.full((), 1, tl.int64) << bit
        one, two, three = (
            tl.zeros((BLOCK,), tl.float64),
            tl.zeros((BLOCK,), tl.float64),
            tl.zeros((BLOCK,), tl.float64),
        )
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            order = _order(tl.load(logits + token, token < vocab, float("-inf")))
            if COUNT:
                mass = (token < vocab).to(tl.float64)
            else:
                mass = tl.load(weights + token, token < vocab, 0.0)
                mass = tl.where(mass >= floor, mass, 0.0)
            one += tl.where(order >= found + step, mass, 0.0)
            two += tl.where(order >= found + 2 * step, mass, 0.0)
            three += tl.where(order >= found + 3 * step, mass, 0.0)
        reached = (tl.sum(one) >= target).to(tl.int64) + (tl.sum(two) >= target) + (tl.sum(three) >= target)
        found += reached * step
    return _value(found)


@triton.jit
def _mass(weights, vocab, floor, BLOCK: tl.constexpr):
    """The sum of the weights from `floor` on."""
    whole = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        mass = tl.load(weights + token, token < vocab, 0.0)
        whole += tl.where(mass >= floor, mass, 0.0)
    return tl.sum(whole)


@triton.jit
def _draw(weights, vocab, floor, u, BLOCK: tl.constexpr):
    """The first token at which the sum of the weights from `floor` on passes u times the whole."""
    whole = _mass(weights, vocab, floor, BLOCK)
    below = tl.zeros((), tl.float64)
    chosen, last = tl.full((), vocab, tl.int64), tl.zeros((), tl.int64)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        mass = tl.load(weights + token, token < vocab, 0.0)
        mass = tl.where(mass >= floor, mass, 0.0)
        passed = below + tl.cumsum(mass) > u * whole
        chosen = tl.minimum(chosen, tl.min(tl.where(passed & (mass > 0.0), token, vocab)))
        last = tl.maximum(last, tl.max(tl.where(mass > 0.0, token, 0)))
        below += tl.sum(mass)
    # Two ways to add up may differ in the last bit, so that nothing passes.
    return tl.minimum(chosen, last)


@triton.jit
def _sample(
    logits, weights, tokens, temperatures, top_ks, top_ps, min_ps, seeds, positions, vocab, row_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """weights: room for float64 [R, vocab]"""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    weights += row * vocab
    best, token = _likeliest(logits, vocab, BLOCK)
    temperature = tl.load(temperatures + row)
    finite = (best == best) & (tl.abs(best) != float("inf"))
    if finite & (temperature > 0.0):
        min_p = tl.load(min_ps + row)
        for start in range(0, vocab, BLOCK):
            column = start + tl.arange(0, BLOCK)
            values = tl.load(logits + column, column < vocab, float("-inf"))
            tl.store(weights + column, _weight(values, best, temperature, min_p), column < vocab)
        tl.debug_barrier()  # other threads of the program read these
        floor = tl.zeros((), tl.float64)
        top_k = tl.load(top_ks + row)
        if (top_k > 0) & (top_k < vocab):
            edge = _reaching(logits, weights, vocab, top_k.to(tl.float64), floor, True, BLOCK)
            floor = _weight(edge, best, temperature, min_p)
        top_p = tl.load(top_ps + row)
        if top_p < 1.0:
            target = top_p * _mass(weights, vocab, floor, BLOCK)
            edge = _reaching(logits, weights, vocab, target, floor, False, BLOCK)
            floor = tl.maximum(floor, _weight(edge, best, temperature, min_p))
        token = _draw(weights, vocab, floor, _uniform(tl.load(seeds + row), tl.load(positions + row)), BLOCK)
    tl.store(tokens + row, tl.where(finite, token, -1))


def sample(logits: Tensor, draws: Draws) -> Tensor:
    """See the package. Logits have stride 1 in the vocabulary."""
    rows, vocab = logits.shape
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    given = (draws.temperatures, draws.top_ks, draws.top_ps, draws.min_ps, draws.seeds, draws.positions)
    assert all(column.shape == (rows,) and column.is_contiguous() for column in given)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    weights = torch.empty(rows, vocab, dtype=torch.float64, device=logits.device)
    _sample[(rows,)](logits, weights, tokens, *given, vocab, logits.stride(0), BLOCK=_BLOCK, num_warps=_WARPS)
    return tokens


_BLOCK, _WARPS = 4096, 16

AOT = (
    Specialisation(
        kernel=_sample,
        signature={
            "logits": "*fp32:16", "weights": "*fp64:16", "tokens": "*i64:16", "temperatures": "*fp64:16",
            "top_ks": "*i64:16", "top_ps": "*fp64:16", "min_ps": "*fp64:16", "seeds": "*i64:16",
            "positions": "*i64:16", "vocab": "i32:16", "row_stride": "i32:16",
        },
        constants={"BLOCK": _BLOCK},
        num_warps=_WARPS,
    ),
)  # fmt: skip
