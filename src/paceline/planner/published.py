"""Published memory figures of serving very large models, beside what this package's arithmetic says.

The figures are their operator's. Where what lies behind one is not published, all plausible readings are calculated
and the range is given; nothing is fitted. A reading is a choice of: groups of INT4, and what the other linear layers
are stored in; with or without the layer for multi-token prediction (MTP), which checkpoints carry; GB or GiB; an even
share of a GPU, or with what tensor parallelism keeps on every rank.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from paceline.engine.layout import KvDtype, plan_layout
from paceline.planner.kv import KvCost, kv_cost
from paceline.planner.mix import GROUPS, Mix, Rest, fp8, int4_experts, native
from paceline.planner.model import Model, find
from paceline.planner.parallel import Parallel
from paceline.planner.plan import Request
from paceline.planner.search import fewest
from paceline.planner.units import GB, GIB
from paceline.planner.weights import local_bytes, whole_bytes

TOLERANCE = 0.03
Verdict: TypeAlias = Literal["explained", "inside the range", "not explained"]

_H200 = 141
_TP8 = Parallel(tp=8)
_UNITS = (("GB", GB), ("GiB", GIB))
_RESTS: tuple[Rest, ...] = ("bf16", "fp8")
_KIMI_LIKE = "group 32, rest BF16"
_SHOWN = 3

Share: TypeAlias = Callable[[Model, Mix, bool], float]
"""Bytes of a model's weights, all or one GPU's, with or without those for multi-token prediction."""


@dataclass(frozen=True, slots=True)
class Claim:
    """All values are in `unit`.

    ours: the reading that `arithmetic` describes; None when not enough is published to choose one
    low, high: the least and the most that any reading gives
    """

    model: str
    what: str
    unit: str
    published: float
    ours: float | None
    low: float
    high: float
    arithmetic: str

    @property
    def verdict(self) -> Verdict:
        if self.ours is not None and abs(self.ours / self.published - 1) <= TOLERANCE:
            return "explained"
        return "inside the range" if self.low <= self.published <= self.high else "not explained"


def claims() -> list[Claim]:
    return [*_kimi_tokens(), *_glm(find("glm-5.2")), _scout(), *_kimi_weights(find("kimi-k2.5"))]


def _kimi_tokens() -> Iterator[Claim]:
    model = find("kimi-k2.6")
    bf16, per_layer, rows = _token_bytes(model)
    pool = 686_000 * bf16
    yield Claim(
        model="Kimi K2.6",
        what="tokens in FP8, in the pool that holds 686k in BF16",
        unit="tokens",
        published=1_370_000,
        ours=pool / per_layer,
        low=pool / rows,
        high=pool / per_layer,
        arithmetic=f"686k x {bf16:,} B = {pool / GB:.1f} GB per GPU; / {per_layer:,} B with a scale per layer. "
        f"Lowest: {rows:,} B, rows that carry their scales",
    )


def _glm(model: Model) -> Iterator[Claim]:
    """The total in FP8 is reached in GiB only, so that the INT4 reading of choice is in GiB and with MTP as well."""
    eight = {"FP8": fp8()}
    four = {f"group {g}, rest {r.upper()}": int4_experts(g, r) for g in GROUPS for r in _RESTS}
    for what, published, name, mixes in (
        ("weights in FP8", 705, "FP8", eight),
        ("weights in INT4", 421, _KIMI_LIKE, four),
    ):
        yield _glm_weights(
            model, what, published, f"{name}, with MTP, GiB", _readings(model, mixes, {"": _whole})
        )
    shares: dict[str, Share] = {"even share, ": _even, "TP8's share, ": _sharded}
    for what, published, name, mixes in (
        ("FP8 weights per GPU at TP8", 88, "FP8", eight),
        ("INT4 weights per GPU at TP8", 52, _KIMI_LIKE, four),
    ):
        readings = _readings(model, mixes, shares)
        yield _glm_weights(model, what, published, f"even share, {name}, with MTP, GiB", readings)
    yield _glm_tokens(model, four[_KIMI_LIKE])


def _readings(model: Model, mixes: dict[str, Mix], shares: dict[str, Share]) -> dict[str, float]:
    return {
        f"{how}{name}, {layers} MTP, {unit}": share(model, mix, layers == "with") / size
        for how, share in shares.items()
        for name, mix in mixes.items()
        for layers in ("with", "without")
        for unit, size in _UNITS
    }


def _glm_weights(
    model: Model, what: str, published: float, reading: str, readings: dict[str, float]
) -> Claim:
    near = [
        f"{name} {value:.1f}"
        for name, value in readings.items()
        if name != reading and abs(value / published - 1) <= TOLERANCE
    ]
    others = f"{len(near)} of {len(readings) - 1} other readings are within {TOLERANCE:.0%}"
    return Claim(
        model="GLM 5.2",
        what=what,
        unit="GB",
        published=published,
        ours=readings[reading],
        low=min(readings.values()),
        high=max(readings.values()),
        arithmetic=f"{reading}; {others}: {'; '.join(near[:_SHOWN])}{' ...' if len(near) > _SHOWN else ''}",
    )


def _glm_tokens(model: Model, mix: Mix) -> Claim:
    """How much of a GPU the engine took is not published; engines take 80 to 90 percent unless told otherwise."""
    bf16, per_layer, rows = _token_bytes(model)
    weights = _even(model, mix, True)
    used = weights + 1_180_000 * per_layer
    low = (0.8 * _H200 * GB - _sharded(model, mix, True)) / rows
    high = (0.9 * _H200 * GIB - weights) / per_layer
    return Claim(
        model="GLM 5.2",
        what="tokens in FP8 beside INT4 weights",
        unit="tokens",
        published=1_180_000,
        ours=None,
        low=low,
        high=high,
        arithmetic=f"1.18M x {per_layer:,} B = {1.18e6 * per_layer / GB:.1f} GB, with {weights / GB:.1f} GB of weights "
        f"{used / (_H200 * GB):.0%} of {_H200} GB; BF16 would need {1.18e6 * bf16 / GB:.1f} GB. "
        f"Range: 80 to 90% of {_H200} GB or GiB, {per_layer:,} or {rows:,} B",
    )


def _scout() -> Claim:
    kv = _kv(find("llama-4-scout"), "bfloat16")
    pool = 56 * GIB
    return Claim(
        model="Llama 4 Scout",
        what="tokens in 56 GiB",
        unit="tokens",
        published=1_200_000,
        ours=pool / kv.token_bytes,
        low=pool / kv.early_token_bytes,
        high=pool / kv.token_bytes,
        arithmetic=f"56 GiB / {kv.token_bytes:,} B of the 12 layers without a chunk; the other 36 hold at most "
        f"{kv.capped_bytes / GIB:.2f} GiB per sequence. Lowest: all 48 layers, sequences within a chunk",
    )


def _kimi_weights(model: Model) -> Iterator[Claim]:
    mix = native(model)
    weights = _whole(model, mix, False)
    yield Claim(
        model="Kimi K2.5",
        what="weights as published",
        unit="GB",
        published=560,
        ours=weights / GIB,
        low=weights / GIB,
        high=weights / GB,
        arithmetic="routed experts INT4 in groups of 32, the rest BF16, in GiB, without the vision tower",
    )
    request = Request(
        model=model,
        mix=mix,
        parallel=Parallel(),
        gpu_memory=80 * GIB,
        roles=("decode",),
        kv={"decode": "bfloat16"},
    )
    found = fewest(request)
    gpus = found.gpus if found else 0
    yield Claim(
        model="Kimi K2.5",
        what="GPUs of 80 GB at least",
        unit="GPUs",
        published=8,
        ours=gpus,
        low=-(-weights // (80 * GIB)),
        high=gpus,
        arithmetic=f"{_sharded(model, mix, False) / GIB:.1f} GiB of weights per GPU at TP8, twice that at TP4",
    )


def _token_bytes(model: Model) -> tuple[int, int, int]:
    """In bfloat16, in FP8 with a scale per layer, and in FP8 in rows that carry their scales."""
    return (
        _kv(model, "bfloat16").token_bytes,
        _kv(model, "fp8_e4m3").token_bytes,
        _kv(model, "fp8_per_token_head").token_bytes,
    )


def _kv(model: Model, dtype: KvDtype) -> KvCost:
    """What a GPU holds of a whole model whose KV is not cut, as every rank does of latents."""
    config = model.config
    return kv_cost(config, plan_layout(config, dtype), range(len(config.layers)), 1)


def _whole(model: Model, mix: Mix, mtp: bool) -> float:
    return sum(whole_bytes(tensor, mix) for tensor in model.served(mtp=mtp))


def _even(model: Model, mix: Mix, mtp: bool) -> float:
    return _whole(model, mix, mtp) / _TP8.gpus


def _sharded(model: Model, mix: Mix, mtp: bool) -> float:
    return local_bytes(model.served(mtp=mtp), mix, _TP8)
