"""What a page holds, and the bytes that a token costs in published models."""

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.engine.layout import KvDtype, PageGroup, Plane, PlaneFormat, plan_layout
from paceline.model.config import DenseMlp, Indexer, LatentAttention, LayerConfig, ModelConfig, Rope

_ROPE = Rope(10000.0, 64, interleaved=True)


def latent_model(layers: int, *, indexed: tuple[int, ...] = (), kv_rank: int = 512) -> ModelConfig:
    """Layers of latent attention; those in `indexed` have an indexer of their own, which the others share."""

    def attention(i: int) -> LatentAttention:
        indexer = Indexer(32, 128, 2048, _ROPE, shared=i not in indexed) if indexed else None
        return LatentAttention(
            heads=64,
            q_rank=1536,
            kv_rank=kv_rank,
            nope_dim=128,
            value_dim=128,
            rope=_ROPE,
            scale=0.1,
            indexer=indexer,
        )

    return ModelConfig(
        family="test",
        hidden=7168,
        layers=tuple(LayerConfig(attention(i), DenseMlp(18432)) for i in range(layers)),
        vocab=100,
        context=4096,
        norm_eps=1e-6,
        tied_head=False,
        bos_id=None,
        eos_ids=frozenset(),
    )


DEEPSEEK_V3 = latent_model(61)
GLM_47_FLASH = latent_model(47)
GLM_52 = latent_model(78, indexed=(0, *range(1, 78, 4)))


@pytest.mark.parametrize(
    ("model", "dtype", "token_bytes"),
    [
        (DEEPSEEK_V3, "float32", 140_544),
        (DEEPSEEK_V3, "bfloat16", 70_272),
        (DEEPSEEK_V3, "fp8_e4m3", 35_136),
        (DEEPSEEK_V3, "fp8_per_token_head", 40_016),
        (GLM_47_FLASH, "bfloat16", 54_144),
        (GLM_47_FLASH, "fp8_e4m3", 27_072),
        (GLM_52, "bfloat16", 89_856 + 5_376),
        (GLM_52, "fp8_e4m3", 44_928 + 2_772),
        (GLM_52, "fp8_per_token_head", 51_168 + 2_772),
    ],
)
def test_bytes_per_token_of_latents_and_index_keys(
    model: ModelConfig, dtype: KvDtype, token_bytes: int
) -> None:
    layout = plan_layout(model, dtype)
    assert layout.token_bytes == layout.full_token_bytes == token_bytes
    assert layout.page_bytes == 64 * token_bytes


def test_planes_of_latents_and_index_keys() -> None:
    """Layers that share an indexer have no index keys."""
    layout = plan_layout(latent_model(3, indexed=(0, 2)), "bfloat16")
    assert list(layout.planes()) == [
        (0, 0, Plane(0, "latent", 1, 576, "bfloat16", 64)),
        (0, 64 * 1152, Plane(0, "index", 1, 128, "bfloat16")),
        (0, 64 * 1408, Plane(1, "latent", 1, 576, "bfloat16", 64)),
        (0, 64 * 2560, Plane(2, "latent", 1, 576, "bfloat16", 64)),
        (0, 64 * 3712, Plane(2, "index", 1, 128, "bfloat16")),
    ]


@pytest.mark.parametrize(("dtype", "latent"), [("fp8_e4m3", "e4m3"), ("fp8_per_token_head", "e4m3_latent")])
def test_formats_of_latents_and_index_keys(dtype: KvDtype, latent: PlaneFormat) -> None:
    """Index keys have a scale each under either FP8."""
    groups = plan_layout(latent_model(3, indexed=(0, 2)), dtype).groups
    formats = [[plane.format for plane in group.planes] for group in groups]
    assert formats == [[latent, "e4m3_scaled", latent, latent, "e4m3_scaled"]]


def test_latents_that_no_blocks_of_scales_divide() -> None:
    with pytest.raises(InvalidRequest, match="160 is no multiple"):
        plan_layout(latent_model(1, kv_rank=160), "fp8_per_token_head")
    assert plan_layout(latent_model(1, kv_rank=160), "fp8_e4m3").groups == (
        PageGroup((Plane(0, "latent", 1, 224, "e4m3", 64),)),
    )
