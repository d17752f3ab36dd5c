"""A converted page is the page that an engine of the other profile would have written, byte for byte."""

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.convert import PageConverter
from paceline.engine.layout import KV_DTYPES, KvDtype, plan_layout
from paceline.engine.profile import KvProfile, scales_of
from paceline.engine.torch.planes import Slots, Table
from paceline.engine.torch.pool import PagePool
from paceline.model.config import (
    DenseMlp,
    GroupedAttention,
    Indexer,
    LatentAttention,
    LayerConfig,
    ModelConfig,
    Rope,
    Window,
)

UInt8 = npt.NDArray[np.uint8]

_ROPE = Rope(10000.0, 8)
GROUPED = GroupedAttention(heads=4, kv_heads=2, head_dim=8, rope=_ROPE)
LATENT = LatentAttention(
    heads=2,
    q_rank=16,
    kv_rank=256,
    nope_dim=8,
    value_dim=8,
    rope=_ROPE,
    scale=1.0,
    indexer=Indexer(heads=2, dim=16, top_k=4, rope=_ROPE),
)
WINDOWED = GroupedAttention(heads=4, kv_heads=2, head_dim=8, rope=_ROPE, span=Window(70))


def config(*attentions: GroupedAttention | LatentAttention) -> ModelConfig:
    layers = tuple(LayerConfig(a, DenseMlp(8)) for a in attentions)
    return ModelConfig("test", 16, layers, 32, 256, 1e-6, True, None, frozenset())


MODELS = {
    "grouped": config(GROUPED, GROUPED),
    "latent": config(LATENT, LATENT),
    "windowed": config(WINDOWED, GROUPED),
}


def profile(model: ModelConfig, dtype: KvDtype, scale: float = 0.01) -> KvProfile:
    layout = plan_layout(model, dtype)
    count = sum(scales_of(plane) for _, _, plane in layout.planes())
    return KvProfile(b"m", dtype, layout, tuple(scale * (i + 1) for i in range(count)))


def pool_of(kv: KvProfile, pages: UInt8) -> PagePool:
    scales = {key: torch.tensor(values).view(-1, 1, 1) for key, values in kv.plane_scales()}
    return PagePool(torch.from_numpy(pages), kv.layout, scales)


def written(kv: KvProfile, group: int, tokens: int) -> UInt8:
    """Two pages [2, page_bytes] of a group, of which the engine's planes wrote `tokens`.

    Values are bfloat16's, up to far beyond what the scales reach.
    """
    pages = np.zeros((2, kv.layout.page_bytes), dtype=np.uint8)
    pool = pool_of(kv, pages)
    slots = Slots.of(np.arange(tokens, dtype=np.int64), torch.device("cpu"))
    for plane in kv.layout.groups[group].planes:
        generator = torch.Generator().manual_seed(plane.layer)
        rows = torch.randn(tokens, plane.heads, plane.dim, generator=generator) * 4
        rows[5] = 0.0
        pool.plane(plane.layer, plane.kind)[1].write(slots, rows.bfloat16().float())
    return pages


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("source", "target"), list(product(["float32", "bfloat16"], KV_DTYPES)))
def test_as_the_engine_writes(name: str, source: KvDtype, target: KvDtype) -> None:
    old, new = profile(MODELS[name], source), profile(MODELS[name], target)
    converter = PageConverter(old, new)
    for group in range(len(old.layout.groups)):
        pages = [converter.convert(group, page) for page in written(old, group, 2 * PAGE_TOKENS)]
        assert np.array_equal(pages, written(new, group, 2 * PAGE_TOKENS))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("source", "target"), list(product(KV_DTYPES, KV_DTYPES)))
def test_values_survive(name: str, source: KvDtype, target: KvDtype) -> None:
    """Between any two profiles: what is read afterwards is what was read before, within the coarser rounding."""
    old, new = profile(MODELS[name], source, scale=0.1), profile(MODELS[name], target, scale=0.1)
    pages = written(old, 0, PAGE_TOKENS + 10)
    converted = np.stack([PageConverter(old, new).convert(0, page) for page in pages])
    table = Table(torch.tensor([[0, 1]]))
    before, after = pool_of(old, pages), pool_of(new, converted)
    for plane in old.layout.groups[0].planes:
        a = before.plane(plane.layer, plane.kind)[1].gather(table, torch.float32)
        b = after.plane(plane.layer, plane.kind)[1].gather(table, torch.float32)
        assert torch.isfinite(a).all()
        assert (a - b).abs().max() <= a.abs().max() / 15  # e4m3 rounds by up to a sixteenth


def test_other_models_are_refused() -> None:
    bfloat16 = profile(MODELS["grouped"], "bfloat16")
    with pytest.raises(InvalidRequest, match="pages of one model"):
        PageConverter(bfloat16, profile(MODELS["latent"], "bfloat16"))
    other = KvProfile(b"n", "bfloat16", bfloat16.layout)
    with pytest.raises(InvalidRequest, match="pages of one model"):
        PageConverter(bfloat16, other)


def test_a_profile_is_its_scales_too() -> None:
    model = MODELS["grouped"]
    assert profile(model, "fp8_e4m3").id == profile(model, "fp8_e4m3").id
    assert profile(model, "fp8_e4m3").id != profile(model, "fp8_e4m3", scale=0.02).id
    assert profile(model, "bfloat16").id != profile(model, "fp8_e4m3").id
    with pytest.raises(InvalidRequest, match="needs 4 positive scales"):
        KvProfile(b"m", "fp8_e4m3", plan_layout(model, "fp8_e4m3"), (1.0, 1.0, 0.0, 1.0))
