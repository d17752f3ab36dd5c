"""Blocks of rows by expert, in one launch that waits for nothing."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation

_STEP = 1024  # pairs that a program looks at together


@triton.jit(do_not_specialize=("pairs", "blocks"))
def _align(
    ids,
    slots,
    owners,
    pairs,
    experts,
    blocks,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Program e lists the pairs whose id is e in blocks of its own, in order, and fills the last one up with `pairs`.

    ids: int64 [pairs] -> slots: int32 [blocks * TOKENS]; owners: int32 [blocks], -1 for blocks of nobody
    """
    expert = tl.program_id(0)
    counts = tl.zeros((EXPERTS,), tl.int32)
    for start in range(0, pairs, STEP):
        pair = start + tl.arange(0, STEP)
        counts += tl.histogram(tl.load(ids + pair, pair < pairs, 0).to(tl.int32), EXPERTS, pair < pairs)
    needed = tl.cdiv(counts, TOKENS)
    first = tl.sum(tl.where(tl.arange(0, EXPERTS) < expert, needed, 0))
    end = first + tl.sum(tl.where(tl.arange(0, EXPERTS) == expert, needed, 0))
    for block in range(first, end):
        tl.store(owners + block, expert)
    if expert == experts - 1:
        for block in range(end, blocks):
            tl.store(owners + block, -1)
    slot = first * TOKENS
    for start in range(0, pairs, STEP):
        pair = start + tl.arange(0, STEP)
        mine = (tl.load(ids + pair, pair < pairs, -1) == expert).to(tl.int32)
        tl.store(slots + slot + tl.cumsum(mine) - 1, pair, mine == 1)
        slot += tl.sum(mine)
    rest = slot + tl.arange(0, TOKENS)
    tl.store(slots + rest, pairs, rest < end * TOKENS)


def align(expert_ids: Tensor, experts: int, tokens: int) -> tuple[Tensor, Tensor]:
    """int64 [T, k] -> slots int32 [blocks * tokens], owners int32 [blocks].

    Slot s holds the pair 'row s // k, choice s % k' that the owner of its block computes, or T * k for none. There are
    as many blocks as could be needed, whatever the ids are, so that nothing waits for the GPU to say how many.
    """
    pairs = expert_ids.numel()
    blocks = min(pairs, pairs // tokens + min(experts, pairs))
    slots = torch.empty(blocks * tokens, dtype=torch.int32, device=expert_ids.device)
    owners = torch.empty(blocks, dtype=torch.int32, device=expert_ids.device)
    _align[(experts,)](
        expert_ids.contiguous(), slots, owners, pairs, experts, blocks,
        TOKENS=tokens, EXPERTS=max(32, triton.next_power_of_2(experts)), STEP=_STEP,
    )  # fmt: skip
    return slots, owners


AOT = (
    Specialisation(
        kernel=_align,
        signature={"ids": "*i64:16", "slots": "*i32:16", "owners": "*i32:16", "pairs": "i32", "experts": "i32:16",
                   "blocks": "i32"},
        constants={"TOKENS": 16, "EXPERTS": 512, "STEP": _STEP},
    ),
)  # fmt: skip
