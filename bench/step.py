"""What a decode step costs with each form of the KV cache, against bfloat16: SmolLM2-135M in bfloat16, one thread.

python -m bench.step [--quick] [--json FILE]
"""

import time
from statistics import median

import numpy as np

from bench.rows import Row, arguments, report
from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.engine.interface import Engine
from paceline.engine.layout import KvDtype
from paceline.engine.registry import open_engine
from paceline.engine.step import Step
from paceline.model.files import locate
from paceline.model.pull import ensure_default

BASE: KvDtype = "bfloat16"
DTYPES: tuple[KvDtype, ...] = (BASE, "fp8_e4m3", "fp8_per_token_head")
CASES = ((1, 511), (1, 2047), (8, 511))
"""Sequences, and the positions that each of them has behind it."""


def decode(sequences: int, context: int) -> Step:
    """One token of each sequence, whose pages follow each other."""
    each = pages_for(context + 1)
    table = np.arange(sequences * each, dtype=np.int32).reshape(1, sequences, each)
    return Step(
        tokens=np.arange(100, 100 + sequences, dtype=np.int32),
        positions=np.full(sequences, context, dtype=np.int32),
        slots=table[:, :, -1].astype(np.int64) * PAGE_TOKENS + context % PAGE_TOKENS,
        parents=np.full(sequences, -1, dtype=np.int32),
        query_starts=np.arange(sequences + 1, dtype=np.int32),
        contexts=np.full(sequences, context + 1, dtype=np.int32),
        page_table=table,
        logit_rows=np.arange(sequences, dtype=np.int32),
    )


def start(dtype: KvDtype, pages: int) -> Engine:
    files = locate(str(ensure_default(lambda done, total: None)))
    engine = open_engine("torch", files, dtype="bfloat16", kv_dtype=dtype, threads=1)
    engine.load(lambda done, total: None)
    engine.bind(np.zeros((pages, engine.layout.page_bytes), dtype=np.uint8))
    return engine


def measure(repeat: int) -> list[Row]:
    pages = max(sequences * pages_for(context + 1) for sequences, context in CASES)
    engines = {dtype: start(dtype, pages) for dtype in DTYPES}
    rows = []
    for sequences, context in CASES:
        step = decode(sequences, context)
        times: dict[KvDtype, list[float]] = {dtype: [] for dtype in DTYPES}
        for _ in range(repeat):
            for (
                dtype,
                engine,
            ) in engines.items():  # by turns, so that other work on the machine meets all alike
                began = time.perf_counter()
                engine.execute(step)
                times[dtype].append((time.perf_counter() - began) * 1e3)
        config: dict[str, str | int | float | bool] = {"sequences": sequences, "context": context + 1}
        rows += [Row.of(f"KV {dtype}", config, "step", times[dtype], "ms") for dtype in DTYPES]
        rows += [
            Row.of(f"KV {dtype} / {BASE}", config, "step", [median(times[dtype]) / median(times[BASE])], "x")
            for dtype in DTYPES[1:]
        ]
    return rows


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    report(measure(5 if options.quick else 25), "step", options.json)


if __name__ == "__main__":
    main()
