"""Scales of an FP8 cache for a checkpoint that brings none: what the model's keys and values reach on a sample.

e4m3 is a float, so that a scale too large by a factor of two costs nothing but the smallest values, while one too small
clips: scales leave a factor of two between the sample and the end of the range.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.engine.interface import Pages
from paceline.engine.layout import PageLayout, plan_layout
from paceline.engine.profile import scales_of
from paceline.engine.step import Step, no_moves
from paceline.model.config import ModelConfig
from paceline.model.files import ModelFiles
from paceline.model.floats import E4M3_MAX

Run: TypeAlias = Callable[[Step, PageLayout, Pages], None]
"""Runs a step of a model whose pages are all of a pool: uint8 [pages, layout.page_bytes] of zeros, keys and values in
float32. What the step writes is there when it returns; its logits are for nobody."""

SAMPLE = (
    "You are a careful engineer. The build fails since yesterday: find out why and mend it.\n\n"
    "def mean(values: list[float]) -> float:\n    return sum(values) / len(values)\n\n"
    '{"name": "read_file", "arguments": {"path": "src/main.py", "lines": [1, 200]}}\n\n'
    "ZeroDivisionError: division by zero in line 42. An empty list has no mean, so the caller must not ask for one. "
    "Paris is the capital of France; 3.14159 is close to pi; $19.99 + 7% = $21.39.\n"
)
MARGIN = 2.0
_MAX_TOKENS = 512


def sample_tokens(files: ModelFiles, config: ModelConfig) -> list[int]:
    """A text in the model's own tokens; of a model without a tokenizer, ids spread over its vocabulary."""
    # Imported here, because only calibration needs it of all that an engine does: a tenth of an engine's imports.
    from paceline.model.tokenizer import Tokenizer

    try:
        tokens = Tokenizer.load(files).encode(SAMPLE)
    except InvalidRequest:
        tokens = [int(t) for t in np.random.default_rng(0).integers(0, config.vocab, 256)]
    begin = [config.bos_id] if config.bos_id is not None else []
    # A tokenizer may know more tokens than the model.
    known = [token for token in begin + tokens if token < config.vocab]
    return known[: min(_MAX_TOKENS, config.context)]


def calibrate(config: ModelConfig, layout: PageLayout, tokens: Sequence[int], run: Run) -> tuple[float, ...]:
    """Scales for `KvProfile.scales` of `layout`, from what `run` writes for the prompt `tokens` at full precision."""
    wide = plan_layout(config, "float32")
    each = pages_for(len(tokens))
    pages = np.zeros((each * len(wide.groups), wide.page_bytes), dtype=np.uint8)
    run(_one_prompt(tokens, groups=len(wide.groups), pages=each), wide, pages)
    return tuple(MARGIN * max(peak, 1e-6) / E4M3_MAX for peak in _peaks(pages, each, wide, layout))


def _peaks(pages: Pages, each: int, wide: PageLayout, layout: PageLayout) -> Iterator[float]:
    """The largest magnitude that each scale of `layout` has to hold; of each group there are `each` pages."""
    wanted = {(plane.layer, plane.kind): scales_of(plane) for _, _, plane in layout.planes()}
    for group, offset, plane in wide.planes():
        if parts := wanted[plane.layer, plane.kind]:
            stored = pages[group * each : (group + 1) * each, offset : offset + plane.bytes]
            heads = stored.view(np.float32).reshape(each, plane.heads, PAGE_TOKENS * plane.dim)
            for part in np.split(heads, parts, axis=1):
                yield float(np.abs(part).max())


def _one_prompt(tokens: Sequence[int], *, groups: int, pages: int) -> Step:
    count = len(tokens)
    table = np.arange(groups * pages, dtype=np.int32).reshape(groups, 1, pages)
    slots = table[:, 0, :1].astype(np.int64) * PAGE_TOKENS + np.arange(count)
    return Step(
        tokens=np.asarray(tokens, dtype=np.int32),
        positions=np.arange(count, dtype=np.int32),
        slots=slots,
        parents=np.full(count, -1, dtype=np.int32),
        query_starts=np.array([0, count], dtype=np.int32),
        contexts=np.array([count], dtype=np.int32),
        page_table=table,
        logit_rows=np.zeros(1, dtype=np.int32),
        moves=no_moves(groups),
    )
