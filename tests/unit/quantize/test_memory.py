"""A matrix of any size is quantized in the memory that a few of its rows take."""

import os
import tracemalloc
from pathlib import Path

import pytest
import torch

from paceline.quantize.options import Options
from paceline.quantize.run import quantize
from tests.unit.quantize.checkpoints import ignore, save, weights


@pytest.mark.parametrize("options", [Options("int4"), Options("fp8"), Options("fp8", fp8="channel")])
def test_memory_is_bounded(options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix takes 64 MB in float32, and the embedding, which is copied, 32 MB; both files are mapped."""
    matrix = weights(64, 4096, seed=1).repeat(64, 1)
    tensors = {
        "model.layers.0.mlp.up_proj.weight": matrix,
        "model.embed_tokens.weight": torch.ones_like(matrix),
    }
    source = save(tmp_path / "source", tensors)
    (source / "recordings.zip").write_bytes(bytes(32_000_000))
    # Each thread holds a piece.
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    tracemalloc.start()
    try:
        quantize(source, tmp_path / "out", options, ignore)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1e6 < peak < 24e6
