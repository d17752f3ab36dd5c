"""Latent attention and its indexer where they are hard to see from outside, and the files of Kimi K2.5."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from torch import Tensor

from paceline.contracts.errors import InvalidRequest
from paceline.engine.interface import Engine
from paceline.engine.layout import KvDtype
from paceline.engine.registry import open_engine
from paceline.engine.torch import indexer, latent_heads
from paceline.engine.torch.latent_heads import LatentHeads
from paceline.engine.torch.members import Members
from paceline.model.config import LatentAttention, Rope
from tests.unit.engine_torch.models import MODELS, SPARSE, Reference, save_model, start_engine
from tests.unit.engine_torch.steps import Rows, make_step
from tests.unit.engine_torch.test_parity import assert_same, prompt

DEEPSEEK = LatentAttention(
    heads=128,
    q_rank=1536,
    kv_rank=512,
    nope_dim=128,
    value_dim=128,
    rope=Rope(10000.0, 64, interleaved=True),
    scale=192**-0.5,
)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save_model("glm_moe_dsa", tmp_path_factory.mktemp("glm_moe_dsa"))


@pytest.mark.parametrize(
    ("rows", "positions", "expanded"),
    [
        (1, 2, False),
        (5, 5, True),
        (8192, 8192, True),
        # 131072 to expand a latent or to absorb a query; then 320 or 1088 per row and position.
        (170, 100_000, False),
        (171, 100_000, True),
        (64, 100, True),
        (63, 110, False),
    ],
)
def test_the_cheaper_way_is_taken(rows: int, positions: int, expanded: bool) -> None:
    assert LatentHeads(DEEPSEEK, torch.empty(0)).expands(rows, positions) is expanded


@pytest.mark.parametrize("expanded", [False, True])
def test_both_ways_in_small_blocks(
    expanded: bool, sparse: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head or a row at a time, as long contexts have it."""
    monkeypatch.setattr(LatentHeads, "expands", lambda *_: expanded)
    monkeypatch.setattr(latent_heads, "_EXPANDED", 1)
    monkeypatch.setattr(indexer, "_SCORES", 1)
    tokens, other = prompt(150), prompt(70, seed=1)
    engine = start_engine(sparse.files)
    found = [
        engine.execute(make_step(Rows(tokens[:120], 0, [1, 2, 3]), Rows(other[:68], 0, [4, 5]))),
        engine.execute(make_step(Rows(tokens[120:], 120, [1, 2, 3]), Rows(other[68:], 68, [4, 5]))),
    ]
    assert_same(np.concatenate([found[0][:120], found[1][:30]]), sparse.logits(tokens))
    assert_same(np.concatenate([found[0][120:], found[1][30:]]), sparse.logits(other))


def test_an_indexer_selects_what_transformers_selects(
    sparse: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fresh prompt, and of rows that see fewer positions than may be selected; shared layers select nothing."""
    expected: list[Tensor] = []
    hooks = [
        layer.self_attn.indexer.register_forward_hook(lambda *call: expected.append(call[2][0]))
        for layer in sparse.model.model.layers
        if layer.self_attn.indexer is not None
    ]
    found = record_selections(monkeypatch)
    tokens = prompt(90)
    sparse.logits(tokens)
    start_engine(sparse.files).execute(make_step(Rows(tokens, 0, [1, 2])))
    for hook in hooks:
        hook.remove()
    assert len(found) == len(expected) == 2
    for ours, theirs in zip(found, expected, strict=True):
        for row in range(90):
            # transformers fills the selection of early rows up with positions behind them.
            seen = {int(p) for p in theirs[row] if p <= row}
            assert sorted(seen) == sorted(p for p in ours[row].tolist() if p >= 0)
            assert len(seen) == min(row + 1, 37)


def test_short_contexts_do_without_scores(sparse: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """But keep their keys, which longer ones need."""

    def refuse(*_: object) -> Tensor:
        raise AssertionError("scored")

    tokens = prompt(60)
    engine = start_engine(sparse.files)
    with monkeypatch.context() as patched:
        patched.setattr(indexer, "_select", refuse)
        engine.execute(make_step(Rows(tokens[:37], 0, [1])))
    found = engine.execute(make_step(Rows(tokens[37:], 37, [1])))
    assert_same(found, sparse.logits(tokens)[37:])


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """An indexer that selects everything, and no router: nothing that rounding tips over."""
    with pytest.MonkeyPatch.context() as patched:
        config = transformers.GlmMoeDsaConfig(
            **SPARSE | {"mlp_layer_types": ["dense"] * 4, "index_topk": 100}
        )
        patched.setitem(MODELS, "dense", lambda: config)
        return save_model("dense", tmp_path_factory.mktemp("dense"))


@pytest.mark.parametrize(
    ("kv_dtype", "most", "least"),
    [("bfloat16", 0.01, 1e-4), ("fp8_e4m3", 0.15, 0.01), ("fp8_per_token_head", 0.15, 0.01)],
)
def test_formats_of_latents(kv_dtype: KvDtype, most: float, least: float, dense: Reference) -> None:
    tokens = prompt(80)
    engine = start_narrow(dense, kv_dtype)
    engine.execute(make_step(Rows(tokens[:70], 0, [2, 1])))
    expected = dense.logits(tokens)[70:]
    error = np.abs(engine.execute(make_step(Rows(tokens[70:], 70, [2, 1]))) - expected).max()
    assert least < error / np.abs(expected).max() < most


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8_e4m3", "fp8_per_token_head"])
def test_formats_of_index_keys(kv_dtype: KvDtype, sparse: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding exchanges few of the positions that the first layer selects."""
    found = record_selections(monkeypatch)

    def of_first_layer(dtype: KvDtype) -> list[list[int]]:
        engine = start_narrow(sparse, dtype)
        found.clear()
        engine.execute(make_step(Rows(prompt(120), 0, [2, 1])))
        rows: list[list[int]] = found[0][60:].tolist()
        return rows

    pairs = zip(of_first_layer("float32"), of_first_layer(kv_dtype), strict=True)
    kept = [len(set(exact) & set(rounded)) for exact, rounded in pairs]
    assert 0.9 * 37 < np.mean(kept) < 37


def start_narrow(reference: Reference, kv_dtype: KvDtype) -> Engine:
    engine = open_engine("torch", reference.files, dtype="float32", kv_dtype=kv_dtype, threads=1)
    engine.load(lambda done, total: None)
    engine.bind(np.full((4, engine.layout.page_bytes), 0xFF, dtype=np.uint8))
    return engine


def record_selections(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What indexers select from now on."""
    found: list[Tensor] = []
    select = indexer._select

    def record(query: Tensor, weights: Tensor, keys: Tensor, members: Members, top_k: int) -> Tensor:
        found.append(select(query, weights, keys, members, top_k))
        return found[-1]

    monkeypatch.setattr(indexer, "_select", record)
    return found


def save_kimi(directory: Path) -> Reference:
    """The files of a text model under the names of one that also sees."""
    reference = save_model("deepseek_v3", directory)
    weights = safetensors.numpy.load_file(directory / "model.safetensors")
    renamed = {f"language_model.{name}": weight for name, weight in weights.items()}
    renamed["vision_tower.patch_embed.proj.weight"] = np.zeros((2, 2), np.float32)
    safetensors.numpy.save_file(renamed, directory / "model.safetensors")
    text = json.loads((directory / "config.json").read_text()) | {"model_type": "kimi_k2"}
    outer = {"model_type": "kimi_k25", "text_config": text, "vision_config": {"hidden_size": 16}}
    (directory / "config.json").write_text(json.dumps(outer))
    return reference


def test_the_text_of_a_model_that_also_sees(tmp_path: Path) -> None:
    reference = save_kimi(tmp_path)
    tokens = prompt(40)
    found = start_engine(reference.files).execute(make_step(Rows(tokens, 0, [1])))
    assert_same(found, reference.logits(tokens))


@pytest.mark.parametrize(
    ("name", "weight", "reason"),
    [
        ("layers.1.self_attn.kv_b_proj.weight", None, "kv_b_proj.weight is missing"),
        (
            "layers.1.self_attn.kv_a_proj_with_mqa.weight",
            torch.zeros(8, 96),
            r"shape \(8, 96\), expected \(144, 96\)",
        ),
        ("layers.2.self_attn.indexer.k_norm.bias", None, "indexer.k_norm.bias is missing"),
        ("layers.1.mlp.gate.e_score_correction_bias", torch.zeros(4), r"shape \(4,\), expected \(8,\)"),
        ("layers.3.mlp.experts.7.up_proj.weight", None, "experts.7.up_proj.weight is missing"),
    ],
)
def test_damaged_files_are_refused(
    name: str, weight: Tensor | None, reason: str, sparse: Reference, tmp_path: Path
) -> None:
    weights = safetensors.numpy.load_file(sparse.directory / "model.safetensors")
    if weight is None:
        del weights[f"model.{name}"]
    else:
        weights[f"model.{name}"] = weight.numpy()
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((sparse.directory / "config.json").read_bytes())
    with pytest.raises(InvalidRequest, match=reason):
        start_engine(Reference(tmp_path, sparse.model).files)
