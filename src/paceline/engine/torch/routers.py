"""Routers: which experts a row goes through, and with what weight. All in float32, whatever the model computes in."""

from typing import TypeAlias

import torch
from torch import Tensor

from paceline.model.config import (
    ChosenSoftmaxRouter,
    ExpertMlp,
    GroupedSigmoidRouter,
    InputSigmoidRouter,
    SoftmaxRouter,
)

Routing: TypeAlias = tuple[Tensor, Tensor]
"""Expert ids int64 [T, k], those of a row all different, and their weights float32 [T, k]."""


def route(mlp: ExpertMlp, logits: Tensor, correction: Tensor | None) -> Routing:
    """Choose `mlp.chosen` experts for each row of `logits` float32 [T, experts].

    correction: float32 [experts], the bias that steers the choice of a `GroupedSigmoidRouter`
    """
    match mlp.router:
        case SoftmaxRouter(renormalise):
            return softmax_over_all(logits, mlp.chosen, renormalise=renormalise)
        case ChosenSoftmaxRouter():
            return softmax_over_chosen(logits, mlp.chosen)
        case InputSigmoidRouter():
            return sigmoid_of_chosen(logits, mlp.chosen)
        case GroupedSigmoidRouter():
            if correction is None:
                raise TypeError("a grouped sigmoid router needs its correction bias")
            return grouped_sigmoid(logits, correction, mlp.chosen, mlp.router)


def softmax_over_all(logits: Tensor, chosen: int, *, renormalise: bool) -> Routing:
    """Qwen3 (arXiv 2505.09388)."""
    weights, ids = logits.softmax(-1).topk(chosen)
    return ids, weights / weights.sum(-1, keepdim=True) if renormalise else weights


def softmax_over_chosen(logits: Tensor, chosen: int) -> Routing:
    """gpt-oss (arXiv 2508.10925)."""
    best, ids = logits.topk(chosen)
    return ids, best.softmax(-1)


def sigmoid_of_chosen(logits: Tensor, chosen: int) -> Routing:
    """Llama 4, whose weights multiply the input of an expert."""
    best, ids = logits.topk(chosen)
    return ids, best.sigmoid()


def grouped_sigmoid(logits: Tensor, correction: Tensor, chosen: int, router: GroupedSigmoidRouter) -> Routing:
    """DeepSeek-V3 (arXiv 2412.19437): the correction decides who is chosen, and is not part of the weights."""
    scores = logits.sigmoid()
    choice = scores + correction
    if router.kept < router.groups:
        choice = _mask_groups(choice, router)
    ids = choice.topk(chosen).indices
    weights = scores.gather(1, ids)
    if router.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * router.scale


def _mask_groups(choice: Tensor, router: GroupedSigmoidRouter) -> Tensor:
    """`choice` [T, experts] with -inf outside the groups whose two best experts have the largest sums."""
    grouped = choice.view(len(choice), router.groups, -1)
    kept = grouped.topk(2).values.sum(-1).topk(router.kept).indices
    dropped = torch.ones(grouped.shape[:2], dtype=torch.bool, device=choice.device).scatter_(1, kept, False)
    return grouped.masked_fill(dropped[..., None], -torch.inf).view_as(choice)
