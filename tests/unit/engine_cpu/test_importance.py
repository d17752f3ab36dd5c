"""The inputs of matrices on a sample are those that transformers computes."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine.cpu.importance import measure_importance
from paceline.model.config import GroupedAttention, read_config
from paceline.model.floats import Float32
from paceline.model.stored import StoredTensor
from paceline.model.weights import open_weights
from tests.unit.engine_torch.models import Reference, save_model
from tests.unit.engine_torch.test_gguf import convert

TOKENS = [int(t) for t in np.random.default_rng(0).integers(3, 160, 64)]


def inputs(reference: Reference) -> dict[str, Float32]:
    """Mean squares of what each linear map of the layers gets, divided by their mean, plus 3%."""
    found = {}

    def note(name: str) -> Any:
        def hook(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
            squares = arguments[0][0].square().mean(0).numpy()
            found[name] = squares / squares.mean() + np.float32(0.03)

        return hook

    handles = [
        module.register_forward_pre_hook(note(name.removeprefix("model.") + ".weight"))
        for name, module in reference.model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".layers." in name
    ]
    with torch.inference_mode():
        reference.model(torch.tensor([TOKENS]))
    for handle in handles:
        handle.remove()
    return found


def assert_same(found: Mapping[str, Float32], expected: Mapping[str, Float32]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], values, rtol=2e-4, err_msg=name)


@pytest.mark.parametrize("name", ["llama", "llama3-rope", "yarn-rope", "qwen2", "qwen3"])
def test_inputs_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Grouped heads, scaled rotations, biases, norms of heads. What comes behind the sample does not count."""
    reference = save_model(name, tmp_path)
    config = read_config(reference.files)
    stored = open_weights(reference.files, config)
    assert_same(measure_importance(config, stored, [*TOKENS, 5, 6, 7]), inputs(reference))


def test_pairs_may_turn_side_by_side(tmp_path: Path) -> None:
    """The rows of a GGUF file in its own order, with the rotation that this order is for."""
    reference = save_model("llama", tmp_path / "hf")
    files = convert(reference, tmp_path / "m.gguf")
    config = read_config(files)
    stored = open_weights(files, config)
    assert_same(measure_importance(config, stored, TOKENS), inputs(reference))
    layer = config.layers[0]
    assert isinstance(layer.attention, GroupedAttention)
    assert layer.attention.rope is not None
    attention = replace(layer.attention, rope=replace(layer.attention.rope, interleaved=True))
    other = replace(config, layers=(replace(layer, attention=attention),) * len(config.layers))
    as_stored = {
        n: replace(t, row_order=None) if isinstance(t, StoredTensor) else t for n, t in stored.items()
    }
    assert_same(measure_importance(other, as_stored, TOKENS), inputs(reference))
