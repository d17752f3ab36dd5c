"""A config.json with fields lost, of another type or absurd is planned with, or refused by its name."""

import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.errors import InvalidRequest
from paceline.model.rope import inverse_frequencies
from paceline.planner import mix, model
from paceline.planner.parallel import Parallel
from paceline.planner.plan import Request, make
from paceline.planner.units import GIB
from tests.unit.planner import shapes

Json: TypeAlias = dict[str, Any]

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0}


def compressed(name: str, weights: Json) -> Json:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": groups, "ignore": ["a.b"]}


CONFIGS: list[Json] = [
    *(json.loads((model.SHAPES / name / "config.json").read_text()) for name in model.shipped()),
    shapes.TINY | {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}},
    shapes.TINY | {"model_type": "qwen2", "quantization_config": {"quant_method": "awq", "bits": 4}},
    shapes.TINY | {"quantization_config": compressed("pack-quantized", INT4), "rope_scaling": YARN},
    shapes.TINY | {"quantization_config": compressed("float-quantized", FP8)},
    shapes.qwen3_moe(4, 4) | {"mlp_only_layers": [1], "decoder_sparse_step": 1},
    shapes.glm4_moe(4),
    shapes.GLM_47_FLASH | {"rope_scaling": YARN | {"mscale_all_dim": 1.0}},
    shapes.GPT_OSS_120B | {"quantization_config": {"quant_method": "mxfp4"}},
]
# Drawn numbers would rarely be these.
NUMBERS = [
    -1,
    0,
    1,
    3,
    10**6,
    2**31 - 1,
    2**63,
    10**400,
    0.5,
    -1.5,
    1e-308,
    1e308,
    float("nan"),
    float("inf"),
]
STRINGS = ["", "yarn", "llama3", "linear", "full_attention", "re:(", "\ud800"]
SECTIONS = [
    YARN | {"beta_slow": 0},
    YARN | {"factor": 1e308, "mscale_all_dim": 1e308},
    {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1},
    {"quant_method": "fp8", "weight_block_size": [0, 128]},
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.sampled_from(STRINGS),
    st.sampled_from(SECTIONS),
    st.lists(st.sampled_from([*NUMBERS, *STRINGS]), max_size=3),
    st.dictionaries(st.sampled_from(["factor", "rope_type"]), st.sampled_from(NUMBERS), max_size=2),
)
LOST = object()


def paths(values: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from paths(value, (*path, key))


@st.composite
def damaged(draw: st.DrawFn) -> Json:
    config = deepcopy(draw(st.sampled_from(CONFIGS)))
    for _ in range(draw(st.integers(1, 3))):
        *outer, last = draw(st.sampled_from([*paths(config), ("rope_parameters",), ("text_config",)]))
        section = config
        for key in outer:
            section = section[key]
        value = draw(st.just(LOST) | VALUES)
        if value is LOST:
            section.pop(last, None)
        else:
            section[last] = deepcopy(value)
    return config


@settings(deadline=None, max_examples=300)
@given(config=damaged())
def test_damage_is_refused_and_nothing_else(config: Json, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.getbasetemp()
    refusal = ""
    try:
        found = shapes.read(directory, config)
    except InvalidRequest as e:
        refusal = str(e)
    if refusal:
        assert refusal.startswith(f"{directory}/config.json")
        return
    with suppress(InvalidRequest):
        plan = make(
            Request(
                model=found,
                mix=mix.native(found),
                parallel=Parallel(),
                gpu_memory=80 * GIB,
                roles=("prefill", "decode"),
                kv={"prefill": "bfloat16", "decode": "fp8_per_token_head"},
            )
        )
        assert plan.weights >= plan.weights_per_gpu > 0
    for layer in dict.fromkeys(found.config.layers):
        rope = layer.attention.rope
        if rope is not None and rope.dim < 2**16:
            assert len(inverse_frequencies(rope)[0]) == rope.dim // 2
