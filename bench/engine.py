"""The CPU engine against its roofs and, with --peers, against llama.cpp, OpenVINO GenAI and vLLM.

    python -m bench.engine [--quick] [--peers] [--json FILE] [--threads N]

SmolLM2-135M-Instruct, prompts of 128 tokens, 64 generated ones, medians of five runs. All forms of this engine run in
this process, by turns, under the scheduler, sampling included; peers come right behind, in environments of their own,
which are built when they are missing. Compare ratios: figures of two machines, or of two days on one, say little.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench import peers
from bench.loop import Loop, Turn
from bench.peers.cases import Cases
from bench.roofs import Roofs
from bench.rows import Row, arguments, quantile, report
from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.contracts.messages import Sampling
from paceline.engine.cpu.engine import CpuEngine
from paceline.engine.cpu.weights import Weights
from paceline.engine.layout import KvDtype, plan_layout
from paceline.engine.scheduler import Limits
from paceline.engine.step import Step
from paceline.model.config import read_config
from paceline.model.files import ModelFiles, locate
from paceline.model.pull import ensure_default

PROMPT, OUTPUT = 128, 64
BATCHES = (1, 8, 32, 64)
PREFILLS = (1024, 4096)
LONG = 4096
FULL = 1024
WEIGHTS: tuple[Weights, ...] = ("auto", "int4", "int8", "bfloat16")
KV: tuple[KvDtype, ...] = ("bfloat16", "fp8_e4m3")
DRAFTS = tuple(range(1, 9))

Config = dict[str, str | int | float | bool]


class Case:
    """One form of the engine, ready to run."""

    def __init__(self, files: ModelFiles, weights: Weights, kv: KvDtype, threads: int) -> None:
        engine = CpuEngine(files, weights=weights, kv_dtype=kv, threads=threads)
        engine.load(lambda done, total: None)
        self.config: Config = {"weights": "Q4_1" if weights == "auto" else weights, "kv": kv}
        most = max(max(BATCHES) * pages_for(PROMPT + 4 * OUTPUT), pages_for(LONG + 2 * OUTPUT))
        self.engine = engine
        self.loop = Loop(engine, most)
        self._fast_steps(8)  # clocks and pages warm up

    def _fast_steps(self, count: int) -> None:
        self.loop.decode(1, PAGE_TOKENS, count)

    def decode(self, batch: int, context: int = PROMPT) -> list[Turn]:
        return self.loop.decode(batch, context, OUTPUT)

    def verify(self, drafted: int, repeat: int) -> list[float]:
        """Milliseconds of a step that verifies a chain of `drafted` tokens behind 192 others."""
        step = chain(192, drafted)
        greedy = [Sampling(max_tokens=1, temperature=0.0)] * drafted
        return [1e3 * _seconds(self.engine, step, greedy) for _ in range(repeat)]

    def close(self) -> None:
        self.engine.close()


def chain(context: int, rows: int) -> Step:
    """`rows` tokens of one sequence behind `context` others: the last one said, then drafts, each a child of the one
    before."""
    pages = pages_for(context + rows)
    index = np.arange(context, context + rows)
    return Step(
        tokens=np.arange(100, 100 + rows, dtype=np.int32),
        positions=index.astype(np.int32),
        slots=index[None],
        parents=np.arange(-1, rows - 1, dtype=np.int32),
        query_starts=np.array([0, rows], dtype=np.int32),
        contexts=np.array([context + rows], dtype=np.int32),
        page_table=np.arange(pages, dtype=np.int32).reshape(1, 1, pages),
        logit_rows=np.arange(rows, dtype=np.int32),
    )


def _seconds(engine: CpuEngine, step: Step, samplings: Sequence[Sampling | None]) -> float:
    began = time.perf_counter()
    engine.sample(step, samplings)
    return time.perf_counter() - began


def decoding(cases: Sequence[Case], roofs: Roofs, repeat: int, batch: int) -> Iterator[Row]:
    """Decode of all forms, by turns so that they meet the same machine, with what Python adds to a step."""
    runs: list[list[list[Turn]]] = [[] for _ in cases]
    for _ in range(repeat):
        for case, done in zip(cases, runs, strict=True):
            done.append(case.decode(batch))
        roofs.measure()
    for case, done in zip(cases, runs, strict=True):
        config = {**case.config, "batch": batch}
        rates = [batch * len(turns) / sum(t.seconds for t in turns) for turns in done]
        steps = [1e3 * t.seconds for turns in done for t in turns]
        added = [1e3 * statistics.median(t.seconds - t.engine for t in turns) for turns in done]
        yield Row.of("paceline", config, "decode_tok_s", rates, "tok/s")
        yield Row.of("paceline", config, "step_p99", [quantile(steps, 0.99)], "ms")
        yield Row.of("paceline", config, "python_per_step", added, "ms")


def prefilling(cases: Sequence[Case], repeat: int, prompt: int) -> Iterator[Row]:
    """Prompts through all forms, by turns."""
    rates: list[list[float]] = [[] for _ in cases]
    for _ in range(repeat):
        for case, done in zip(cases, rates, strict=True):
            done.append(case.loop.prefill(prompt))
    for case, done in zip(cases, rates, strict=True):
        yield Row.of("paceline", {**case.config, "prompt": prompt}, "prefill_tok_s", done, "tok/s")


def of_the_roof(case: Case, decode: Row, roofs: Roofs) -> Row:
    """Decode at batch 1 reads all weights once a step: the share of what memory gives that it takes."""
    share = decode.median * case.engine.weight_bytes / roofs.bandwidth
    return Row.of("paceline / roof", decode.config, "dram_read", [share], "x")


def long_context(case: Case, repeat: int) -> Row:
    """The time of a token behind 4k others over that behind 128."""
    ratios = []
    for _ in range(repeat):
        long, short = (
            statistics.median(t.seconds for t in case.decode(1, context)) for context in (LONG, PROMPT)
        )
        ratios.append(long / short)
    return Row.of("paceline 4k / 128", {**case.config, "batch": 1}, "step", ratios, "x")


def verification(case: Case, repeat: int) -> Iterator[Row]:
    """The time of a step that verifies so many tokens over that of one."""
    times: dict[int, list[float]] = {drafted: [] for drafted in DRAFTS}
    for _ in range(4 * repeat):
        for drafted, measured in times.items():
            measured += case.verify(drafted, 2)
    one = statistics.median(times[1])
    for drafted, measured in times.items():
        config = {**case.config, "tokens": drafted}
        yield Row.of("paceline verify / one", config, "step", [statistics.median(measured) / one], "x")


def find(rows: Sequence[Row], metric: str, config: Config) -> Row:
    """The row of this engine."""
    return next(r for r in rows if r.what == "paceline" and r.metric == metric and r.config == config)


def ratio(rows: Sequence[Row], metric: str, size: str, value: int, form: Config, base: Config) -> Row:
    """Between two rows of ours."""
    of, to = (find(rows, metric, {**wanted, size: value}).median for wanted in (form, base))
    name = f"{form['weights']} {form['kv']} / {base['weights']} {base['kv']}"
    return Row.of(name, {size: value}, metric, [of / to], "x")


def against_peers(ours: Sequence[Row], theirs: Sequence[Row]) -> Iterator[Row]:
    """Ours over the best of the peers, wherever both have a figure; ours with the file's weights and bfloat16 KV."""
    for row in ours:
        if row.config.get("weights") != "Q4_1" or row.config.get("kv") != "bfloat16":
            continue
        size = {k: v for k, v in row.config.items() if k in ("batch", "prompt")}
        rivals = [p for p in theirs if p.metric == row.metric and size.items() <= p.config.items()]
        if size and rivals:
            best = max(rivals, key=lambda p: p.median)
            yield Row.of(f"paceline / {best.what}", size, row.metric, [row.median / best.median], "x")


def measure(files: ModelFiles, threads: int, roofs: Roofs, *, quick: bool) -> list[Row]:
    """Rows of all forms."""
    repeat = 2 if quick else 5
    batches, prefills = ((1, 8), PREFILLS[:1]) if quick else (BATCHES, PREFILLS)
    as_filed = [Case(files, "auto", kv, threads) for kv in KV]
    recoded = [Case(files, weights, KV[0], threads) for weights in WEIGHTS if weights != "auto"]
    rows: list[Row] = []
    for batch in batches:
        cases = as_filed + recoded if batch in batches[:3] else as_filed
        rows += decoding(cases, roofs, repeat, batch)
    for prompt in prefills:
        cases = as_filed + recoded if prompt == prefills[0] else as_filed
        rows += prefilling(cases, repeat, prompt)
    for case in as_filed:
        alone = {**case.config, "batch": 1}
        rows.append(of_the_roof(case, find(rows, "decode_tok_s", alone), roofs))
        rows.append(long_context(case, repeat))
        rows += verification(case, repeat)
    for case in as_filed + recoded:
        case.close()
    rows += comparisons(rows, batches, prefills)
    return rows


def comparisons(rows: Sequence[Row], batches: Sequence[int], prefills: Sequence[int]) -> Iterator[Row]:
    """What narrower KV and narrower weights gain."""
    base: Config = {"weights": "Q4_1", "kv": "bfloat16"}
    for batch in batches:
        yield ratio(rows, "decode_tok_s", "batch", batch, {**base, "kv": "fp8_e4m3"}, base)
    int4, int8, wide = ({**base, "weights": weights} for weights in ("int4", "int8", "bfloat16"))
    for form, to in ((int4, int8), (int4, wide)):
        for batch in batches[:3]:
            yield ratio(rows, "decode_tok_s", "batch", batch, form, to)
        yield ratio(rows, "prefill_tok_s", "prompt", prefills[0], form, to)


def capacity(files: ModelFiles, threads: int, repeat: int) -> Iterator[Row]:
    """Sequences of 1k tokens that fit where 32 do in bfloat16, and their tokens per second while all of them decode."""
    memory = 32 * pages_for(FULL) * plan_layout(read_config(files), KV[0]).page_bytes
    loops, rates = [], [list[float]() for _ in KV]
    for kv in KV:
        engine = CpuEngine(files, weights="auto", kv_dtype=kv, threads=threads)
        engine.load(lambda done, total: None)
        pages = memory // engine.layout.page_bytes
        # Long steps, so that whoever is computed first says little until all are.
        limits = Limits(step_tokens=2 * FULL, sequences=pages // pages_for(FULL))
        loops.append(Loop(engine, pages, limits))
    for _ in range(repeat):
        for loop, measured in zip(loops, rates, strict=True):
            turns = loop.decode(loop.limits.sequences, FULL - 2 * OUTPUT, OUTPUT // 4)
            measured.append(loop.limits.sequences * len(turns) / sum(t.seconds for t in turns))
    for kv, loop, measured in zip(KV, loops, rates, strict=True):
        config: Config = {"weights": "Q4_1", "kv": kv, "context": FULL}
        yield Row.of("paceline", config, "sequences_that_fit", [loop.limits.sequences], "")
        yield Row.of("paceline", config, "peak_decode_tok_s", measured, "tok/s")
        loop.engine.close()
    gain = [narrow / wide for wide, narrow in zip(*rates, strict=True)]
    yield Row.of(f"{KV[1]} / {KV[0]}", {"context": FULL}, "peak_decode_tok_s", gain, "x")


def process(threads: int, *, quick: bool) -> Iterator[Row]:
    """A fresh process: its first token, and its memory beyond weights and KV, at the end of many requests."""
    firsts, beyond, growth = [], [], []
    many = 1000 if quick else 10_000
    for i in range(3 if quick else 5):
        requests = many if i == 0 else 0
        began = time.monotonic()
        command = [sys.executable, "-m", "bench.engine_process", "--threads", str(threads)]
        answer = subprocess.run(
            [*command, "--requests", str(requests)], check=True, capture_output=True, text=True
        )
        found = json.loads(answer.stdout.splitlines()[-1])
        firsts.append(found["first_token"] - began)
        beyond.append(found["beyond"])
        growth += [found["growth"]] if requests else []
    yield Row.of("paceline", {}, "cold_first_token_s", firsts, "s")
    yield Row.of("paceline", {}, "rss_beyond_weights_and_kv", beyond, "MB")
    yield Row.of("paceline", {"requests": many}, "rss_growth", growth, "MB")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--peers", action="store_true", help="build them where missing, and measure them too")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    path = Path(ensure_default(lambda done, total: None))
    roofs = Roofs(options.threads)
    ours = measure(locate(str(path)), options.threads, roofs, quick=options.quick)
    if not options.quick:
        ours += capacity(locate(str(path)), options.threads, 2)
    ours += process(options.threads, quick=options.quick)
    rivals = peers.measure(path, _cases(options.threads, quick=options.quick)) if options.peers else []
    roofs.measure()
    report([*roofs.rows(), *ours, *rivals, *against_peers(ours, rivals)], "engine", options.json)


def _cases(threads: int, *, quick: bool) -> Cases:
    if quick:
        return Cases(decode=BATCHES[:2], prefill=PREFILLS[:1], repeats=2, threads=threads)
    return Cases(BATCHES, PREFILLS, PROMPT, OUTPUT, threads=threads)


if __name__ == "__main__":
    main()
