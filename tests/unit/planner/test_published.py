"""Published figures are explained within 3%, or lie inside the range of what their readings give."""

import pytest

from paceline.planner.published import Claim, claims


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], Claim]:
    return {(claim.model, claim.what): claim for claim in claims()}


@pytest.mark.parametrize(
    ("model", "what", "published", "ours"),
    [
        ("Kimi K2.6", "tokens in FP8, in the pool that holds 686k in BF16", 1_370_000, 1_372_000),
        ("GLM 5.2", "weights in FP8", 705, 703.7),
        ("GLM 5.2", "weights in INT4", 421, 419.9),
        ("GLM 5.2", "FP8 weights per GPU at TP8", 88, 87.96),
        ("GLM 5.2", "INT4 weights per GPU at TP8", 52, 52.49),
        ("Llama 4 Scout", "tokens in 56 GiB", 1_200_000, 1_223_339),
        ("Kimi K2.5", "weights as published", 560, 553.4),
        ("Kimi K2.5", "GPUs of 80 GB at least", 8, 8),
    ],
)
def test_explained(
    table: dict[tuple[str, str], Claim], model: str, what: str, published: float, ours: float
) -> None:
    claim = table[model, what]
    assert claim.published == published
    assert claim.ours is not None
    assert claim.ours == pytest.approx(ours, rel=1e-3)
    assert claim.ours == pytest.approx(published, rel=0.03)
    assert claim.verdict == "explained"
    assert claim.low <= claim.ours <= claim.high


def test_figures_of_which_too_little_is_published(table: dict[tuple[str, str], Claim]) -> None:
    claim = table["GLM 5.2", "tokens in FP8 beside INT4 weights"]
    assert claim.ours is None
    assert claim.low < 1_180_000 < claim.high
    assert claim.verdict == "inside the range"
    # The mix of INT4 is not published: the range goes from groups of 128 beside FP8 to groups of 32 beside BF16.
    mixes = table["GLM 5.2", "weights in INT4"]
    assert mixes.low == pytest.approx(367.3, abs=0.1)
    assert mixes.high == pytest.approx(450.9, abs=0.1)


def test_every_claim_is_listed(table: dict[tuple[str, str], Claim]) -> None:
    assert len(table) == 9
    assert "not explained" not in {claim.verdict for claim in table.values()}


def test_a_figure_that_is_far_off_is_not_explained() -> None:
    claim = Claim("m", "w", "GB", published=100, ours=104, low=101, high=110, arithmetic="")
    assert claim.verdict == "not explained"
