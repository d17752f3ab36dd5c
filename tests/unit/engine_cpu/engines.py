"""The CPU engine, with its native step compiled for a level."""

from pathlib import Path
from unittest.mock import patch

import numpy as np

from paceline.engine.cpu.build import STEP
from paceline.engine.cpu.engine import CpuEngine
from paceline.engine.cpu.levels import Level
from paceline.engine.cpu.weights import Weights
from paceline.engine.layout import KvDtype
from paceline.model.files import ModelFiles
from tests.unit.engine_cpu.native import build
from tests.unit.engine_torch.bound import SPOILED, Bound
from tests.unit.engine_torch.models import PAGES


def start(
    files: ModelFiles,
    level: Level,
    *,
    weights: Weights = "auto",
    kv_dtype: KvDtype = "float32",
    threads: int = 2,
) -> Bound:
    """Over pages that hold NaN. What this machine lacks of a level is emulated, or the test skipped."""
    path = Path(build(STEP, level)._name)
    engine = CpuEngine(files, weights=weights, kv_dtype=kv_dtype, threads=threads)
    with patch("paceline.engine.cpu.build.library", lambda _: path):
        engine.load(lambda done, total: None)
    pages = np.full((PAGES, engine.layout.page_bytes), SPOILED, dtype=np.uint8)
    engine.bind(pages)
    return Bound(engine, pages)
