"""Scales of an FP8 cache from what a run of the sample leaves in pages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from paceline.engine.calibration import calibrate
from paceline.engine.interface import Pages
from paceline.engine.layout import PageLayout, plan_layout
from paceline.engine.step import Step
from paceline.model.config import ModelConfig
from paceline.model.config_hf import parse
from paceline.model.fields import Fields

library: Any = transformers  # typed only in part

TOKENS = list(range(130))
PAGES = 3


def model(config: Any) -> ModelConfig:
    """Of a configuration of transformers."""
    return parse(Fields(config.to_dict(), Path("config.json")), frozenset())


def write(step: Step, layout: PageLayout, pages: Pages) -> None:
    """The peak of layer i is i + 1 in keys and latents and -(i + 1) / 2 in values, each in the last row."""
    assert (step.tokens.tolist(), step.positions.tolist()) == (TOKENS, TOKENS)
    assert pages.shape == (PAGES * len(layout.groups), layout.page_bytes)
    for group, offset, plane in layout.planes():
        page, row = divmod(int(step.slots[group, -1]), 64)
        assert page == step.page_table[group, 0, PAGES - 1]
        stored = pages[page, offset : offset + plane.bytes].view(np.float32)
        heads = stored.reshape(plane.heads, 64, plane.dim)
        heads[-1, row, -1] = -(plane.layer + 1) / 2
        heads[0, row, 0] = plane.layer + 1


@pytest.mark.parametrize(
    ("config", "peaks"),
    [
        # Layers 0 and 2 look back over a window and have pages of their own, which come first.
        (library.GptOssConfig(num_hidden_layers=4), [1, 0.5, 3, 1.5, 2, 1, 4, 2]),
        (library.DeepseekV3Config(num_hidden_layers=2), [1, 2]),
    ],
)
def test_scales_leave_half_of_the_range_above_the_peaks(config: Any, peaks: list[float]) -> None:
    read = model(config)
    found = calibrate(read, plan_layout(read, "fp8_e4m3"), TOKENS, write)
    assert found == tuple(2.0 * peak / 448 for peak in peaks)


def test_what_a_plane_scales_by_itself_is_left_out() -> None:
    read = model(library.Qwen3MoeConfig(num_hidden_layers=2))
    assert calibrate(read, plan_layout(read, "fp8_per_token_head"), TOKENS, write) == ()


def test_a_layer_of_zeros_has_a_scale() -> None:
    read = model(library.Qwen3MoeConfig(num_hidden_layers=1))
    found = calibrate(read, plan_layout(read, "fp8_e4m3"), TOKENS, lambda step, layout, pages: None)
    assert found == (2e-6 / 448, 2e-6 / 448)
