"""Routers by values that can be checked by hand."""

import pytest
import torch
from torch import Tensor

from paceline.engine.torch.routers import Routing, route
from paceline.model.config import (
    ChosenSoftmaxRouter,
    ExpertMlp,
    GroupedSigmoidRouter,
    InputSigmoidRouter,
    Router,
    SoftmaxRouter,
)

PROBABILITIES = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.4, 0.1, 0.3, 0.2]])


def routed(router: Router, logits: Tensor, chosen: int = 2, correction: Tensor | None = None) -> Routing:
    return route(ExpertMlp(logits.shape[1], chosen, 1, router), logits, correction)


def same(found: Routing, ids: list[list[int]], weights: list[list[float]]) -> None:
    assert found[0].tolist() == ids
    assert found[1].dtype == torch.float32
    torch.testing.assert_close(found[1], torch.tensor(weights))


def test_softmax_over_all() -> None:
    logits = PROBABILITIES.log()
    same(routed(SoftmaxRouter(renormalise=False), logits), [[1, 3], [0, 2]], [[0.4, 0.3], [0.4, 0.3]])
    same(routed(SoftmaxRouter(renormalise=True), logits), [[1, 3], [0, 2]], [[4 / 7, 3 / 7], [4 / 7, 3 / 7]])


def test_softmax_over_the_chosen() -> None:
    found = routed(ChosenSoftmaxRouter(), PROBABILITIES.log() + 5.0)
    same(found, [[1, 3], [0, 2]], [[4 / 7, 3 / 7], [4 / 7, 3 / 7]])


def test_sigmoid_of_the_chosen() -> None:
    same(routed(InputSigmoidRouter(), PROBABILITIES.logit(), 1), [[1], [0]], [[0.4], [0.4]])


def test_the_correction_chooses_and_does_not_weigh() -> None:
    router = GroupedSigmoidRouter(groups=1, kept=1, scale=2.0, renormalise=False)
    correction = torch.tensor([0.5, 0.0, 0.0, 0.25])
    found = routed(router, PROBABILITIES.logit(), correction=correction)
    same(found, [[0, 3], [0, 3]], [[0.2, 0.6], [0.8, 0.4]])


def test_groups_with_the_best_pairs_remain() -> None:
    """The best expert of all is in a group that is dropped, and one below zero after correction is chosen."""
    router = GroupedSigmoidRouter(groups=3, kept=1, scale=1.0, renormalise=True)
    scores = torch.tensor([[0.9, 0.1, 0.6, 0.6, 0.2, 0.3]])
    found = routed(router, scores.logit(), correction=torch.zeros(6))
    same(found, [[2, 3]], [[0.5, 0.5]])
    lowered = routed(router, scores.logit(), correction=torch.tensor([-2.0, -2.0, -2.0, 0.3, -2.0, -2.0]))
    same(lowered, [[3, 2]], [[0.5, 0.5]])


def test_a_correction_is_needed() -> None:
    with pytest.raises(TypeError, match="correction"):
        routed(GroupedSigmoidRouter(1, 1, 1.0, True), PROBABILITIES)
