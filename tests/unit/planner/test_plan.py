"""Plans: memory adds up, and the fewest GPUs are found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.planner import mix, model
from paceline.planner.parallel import Parallel
from paceline.planner.plan import Request, make
from paceline.planner.search import fewest
from paceline.planner.units import GB, GIB, parse_size
from paceline.planner.workspace import Step, workspace
from tests.unit.planner import shapes


def request(found: model.Model, **more: Any) -> Request:
    values: dict[str, Any] = {
        "model": found,
        "mix": mix.native(found),
        "parallel": Parallel(),
        "gpu_memory": 80 * GIB,
        "roles": ("prefill", "decode"),
        "kv": {"prefill": "bfloat16", "decode": "fp8_e4m3"},
    }
    return Request(**(values | more))


def test_the_pool_is_what_is_left(tmp_path: Path) -> None:
    found = shapes.read(tmp_path, shapes.SMOLLM2_135M)
    plan = make(request(found, gpu_memory=4 * GIB, reserve=GIB))
    for profile, token_bytes in zip(plan.profiles, (23_040, 11_520), strict=True):
        assert profile.weights == plan.weights == 2 * 134_515_008
        assert profile.pool == 3 * GIB - profile.weights - profile.workspace.bytes
        assert profile.tokens == profile.pool // token_bytes // 64 * 64
    assert [profile.longest for profile in plan.profiles] == [plan.profiles[0].tokens, 131_072]


def test_kinds_sum_to_all_weights() -> None:
    plan = make(request(model.find("glm-5.2"), parallel=Parallel(tp=8, pp=2)))
    assert sum(row.bytes for row in plan.kinds) == plan.weights
    assert sum(row.bytes_per_gpu for row in plan.kinds) == plan.weights_per_gpu
    assert plan.weights_per_gpu == max(profile.weights for profile in plan.profiles)


def test_data_parallel_ranks_add_their_tokens() -> None:
    found = model.find("glm-5.2")
    plan = make(
        request(found, parallel=Parallel(dp=8, ep=8), mix=mix.int4_experts(32, "fp8"), gpu_memory=141 * GIB)
    )
    decode = plan.profiles[1]
    assert decode.tokens == 8 * decode.tokens_per_gpu > 0


def test_pipeline_stages_hold_the_same_tokens_in_less_memory_each() -> None:
    found = model.find("kimi-k2.5")
    flat = make(request(found, parallel=Parallel(tp=8), kv_pool=10 * GIB)).profiles[1]
    deep = make(request(found, parallel=Parallel(tp=8, pp=2), kv_pool=10 * GIB)).profiles[1]
    assert flat.kv.token_bytes == 61 * 576
    assert deep.kv.token_bytes == 31 * 576  # the first of two stages
    assert deep.tokens > 1.9 * flat.tokens


def test_mtp_counts_its_weights_and_its_kv() -> None:
    found = model.find("glm-5.2")
    without, with_ = (make(request(found, parallel=Parallel(tp=8), mtp=mtp)) for mtp in (False, True))
    assert with_.parameters - without.parameters == 753_329_940_480 - 743_377_019_904
    more = with_.whole_kv["decode"].token_bytes - without.whole_kv["decode"].token_bytes
    assert more == 576 + 128 + 4


def test_the_fewest_gpus_fit_and_half_of_them_do_not() -> None:
    asked = request(model.find("kimi-k2.5"), parallel=Parallel(tp=16, ep=16))
    least = fewest(asked)
    assert least == Parallel(tp=8, ep=8)
    assert make(replace(asked, parallel=least)).fits
    assert not make(replace(asked, parallel=Parallel(tp=4, ep=4))).fits
    assert fewest(replace(asked, gpu_memory=4 * GIB)) is None


def test_what_shares_a_scale_is_not_cut(tmp_path: Path) -> None:
    found = shapes.read(tmp_path, shapes.TINY_LATENT)
    asked = request(found, mix=mix.int4_experts(32, "bf16"), parallel=Parallel(tp=2))
    with pytest.raises(
        InvalidRequest, match=r"cuts layers\.1\.mlp\.experts\.0\.down_proj into 16 columns, of which 32"
    ):
        make(asked)
    assert make(replace(asked, parallel=Parallel(tp=2, ep=2))).fits


def test_a_context_that_was_asked_for_must_fit() -> None:
    asked = request(model.find("kimi-k2.5"), parallel=Parallel(tp=8))
    assert make(asked).fits
    assert not make(replace(asked, context=200_000)).fits
    assert not make(replace(asked, kv_pool=20 * GIB)).fits  # more than there is


def test_workspace_by_hand(tmp_path: Path) -> None:
    """1,000 rows of TINY on two ranks, 10 of which sample: 4 of 8 heads of 8, one KV head, 48 columns."""
    found = shapes.read(tmp_path, shapes.TINY)
    space = workspace(found.config, Parallel(tp=2), Step(rows=1000, sampled=10, context=4096))
    assert space.hidden == 3 * 1000 * 64 * 2
    assert space.attention == 1000 * (4 + 4 + 1 + 1) * 8 * 2
    assert space.mlp == 1000 * 3 * 48 * 2
    assert space.logits == 10 * (50 + 100) * 4
    assert space.bytes == space.hidden + max(space.attention, space.mlp) + space.logits


@pytest.mark.parametrize(
    ("text", "size"),
    [("80", 80 * GIB), ("48.2 GB", 48_200_000_000), ("141gib", 141 * GIB), ("1TB", 1000 * GB)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "--x") == size


@pytest.mark.parametrize("text", ["", "-1", "80 GX", "GB", "1e3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--x"):
        parse_size(text, "--x")
