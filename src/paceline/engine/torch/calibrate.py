"""Scales of an FP8 cache for a checkpoint that brings none: what the model's keys and values reach on a sample.

e4m3 is a float, so that a scale too large by a factor of two costs nothing but the smallest values, while one too small
clips: scales leave a factor of two between the sample and the end of the range.
"""

import numpy as np
import torch

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.engine.layout import PageLayout, plan_layout
from paceline.engine.profile import scales_of
from paceline.engine.step import Step, no_moves
from paceline.engine.torch.attention import StepAttention
from paceline.engine.torch.decoder import Decoder, Forward
from paceline.engine.torch.planes import Slots, Table
from paceline.engine.torch.pool import PagePool
from paceline.engine.torch.rope import Ropes
from paceline.model.config import ModelConfig
from paceline.model.files import ModelFiles
from paceline.model.floats import E4M3_MAX
from paceline.model.tokenizer import Tokenizer

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
    try:
        tokens = Tokenizer.load(files).encode(SAMPLE)
    except InvalidRequest:
        tokens = [int(t) for t in np.random.default_rng(0).integers(0, config.vocab, 256)]
    begin = [config.bos_id] if config.bos_id is not None else []
    # A tokenizer may know more tokens than the model.
    known = [token for token in begin + tokens if token < config.vocab]
    return known[: min(_MAX_TOKENS, config.context)]


def calibrate(
    decoder: Decoder,
    config: ModelConfig,
    ropes: Ropes,
    layout: PageLayout,
    tokens: list[int],
    dtype: torch.dtype,
) -> tuple[float, ...]:
    """Scales for `KvProfile.scales` of `layout`, from the keys and values of `tokens` at full precision."""
    device = decoder.embedding.device
    wide = plan_layout(config, "float32")
    each = pages_for(len(tokens))
    pages = torch.zeros(each * len(wide.groups), wide.page_bytes, dtype=torch.uint8, device=device)
    pool = PagePool(pages, wide, {})
    step = _one_prompt(tokens, groups=len(wide.groups), pages=each)
    positions = torch.from_numpy(step.positions).to(device)
    slots = [Slots.of(group, device) for group in step.slots]
    forward = Forward(positions, ropes.at(positions), StepAttention(step, pool, slots, device, dtype))
    decoder(
        torch.from_numpy(step.tokens).to(device), forward, torch.zeros(1, dtype=torch.int64, device=device)
    )
    scales = []
    for group, _, plane in layout.planes():
        count = scales_of(plane)
        if count:
            table = Table(torch.from_numpy(step.page_table[group].astype(np.int64)).to(device))
            _, store = pool.plane(plane.layer, plane.kind)
            found = store.gather(table, torch.float32).abs()
            peaks = [float(part.max()) for part in found.chunk(count, 1)]
            scales += [MARGIN * max(peak, 1e-6) / E4M3_MAX for peak in peaks]
    return tuple(scales)


def _one_prompt(tokens: list[int], *, groups: int, pages: int) -> Step:
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
