"""The CPU engine against its roofs and, with --peers, against llama.cpp, OpenVINO GenAI and vLLM.

    python -m bench.engine [--quick] [--peers] [--json FILE] [--threads N]

SmolLM2-135M-Instruct, prompts of 128 tokens, 64 generated ones, medians of five runs. Everything runs in this process
under the scheduler, sampling included; peers run by turns with it in environments of their own, which are built when
they are missing. Compare ratios: figures of two machines, or of two days on one, say little.
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


def speed(
    case: Case, roofs: Roofs, repeat: int, batches: Sequence[int], prefills: Sequence[int]
) -> list[Row]:
    """Decode and prefill of one form, with what Python adds to a step."""
    rows = []
    for batch in batches:
        rates, steps, added = [], [], []
        for _ in range(repeat):
            turns = case.decode(batch)
            rates.append(batch * len(turns) / sum(t.seconds for t in turns))
            steps += [1e3 * t.seconds for t in turns]
            added.append(1e3 * statistics.median(t.seconds - t.engine for t in turns))
            roofs.measure()
        config = {**case.config, "batch": batch}
        rows += [
            Row.of("paceline", config, "decode_tok_s", rates, "tok/s"),
            Row.of("paceline", config, "step_p99", [quantile(steps, 0.99)], "ms"),
            Row.of("paceline", config, "python_per_step", added, "ms"),
        ]
    for prompt in prefills:
        rates = [case.loop.prefill(prompt) for _ in range(repeat)]
        rows.append(Row.of("paceline", {**case.config, "prompt": prompt}, "prefill_tok_s", rates, "tok/s"))
    return rows


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
    times = {drafted: case.verify(drafted, 4 * repeat) for drafted in DRAFTS}
    one = statistics.median(times[1])
    for drafted, measured in times.items():
        config = {**case.config, "tokens": drafted}
        yield Row.of("paceline verify / one", config, "step", [statistics.median(measured) / one], "x")


def ratio(rows: Sequence[Row], metric: str, size: str, value: int, form: Config, base: Config) -> Row:
    """Between two rows of ours."""

    def find(wanted: Config) -> Row:
        return next(r for r in rows if r.metric == metric and r.config == {**wanted, size: value})

    name = f"{form['weights']} {form['kv']} / {base['weights']} {base['kv']}"
    return Row.of(name, {size: value}, metric, [find(form).median / find(base).median], "x")


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


def measure(files: ModelFiles, threads: int, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of all forms, and rows of the roofs."""
    repeat = 2 if quick else 5
    batches, prefills = ((1, 8), PREFILLS[:1]) if quick else (BATCHES, PREFILLS)
    roofs = Roofs(threads)
    rows: list[Row] = []
    for weights in WEIGHTS:
        for kv in KV if weights == "auto" else KV[:1]:
            case = Case(files, weights, kv, threads)
            if weights == "auto":
                found = speed(case, roofs, repeat, batches, prefills)
                rows += [*found, of_the_roof(case, found[0], roofs), long_context(case, repeat)]
                rows += verification(case, repeat)
            else:
                rows += speed(case, roofs, repeat, batches[:3], prefills[:1])
            case.close()
    rows += comparisons(rows, batches, prefills)
    return rows, roofs.rows()


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


def capacity(files: ModelFiles, threads: int) -> Iterator[Row]:
    """Sequences of 1k tokens that fit where 32 do in bfloat16, and their tokens per second while all of them decode."""
    rates = {}
    for kv in KV:
        engine = CpuEngine(files, weights="auto", kv_dtype=kv, threads=threads)
        engine.load(lambda done, total: None)
        pages = (
            32
            * pages_for(FULL)
            * plan_layout(read_config(files), KV[0]).page_bytes
            // engine.layout.page_bytes
        )
        fit = pages // pages_for(FULL)
        turns = Loop(engine, pages, Limits(sequences=fit)).decode(fit, FULL - OUTPUT, OUTPUT // 4)
        rates[kv] = fit * len(turns) / sum(t.seconds for t in turns)
        config: Config = {"weights": "Q4_1", "kv": kv, "context": FULL}
        yield Row.of("paceline", config, "sequences_that_fit", [fit], "")
        yield Row.of("paceline", config, "peak_decode_tok_s", [rates[kv]], "tok/s")
        engine.close()
    yield Row.of(
        f"{KV[1]} / {KV[0]}", {"context": FULL}, "peak_decode_tok_s", [rates[KV[1]] / rates[KV[0]]], "x"
    )


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
    ours, roofs = measure(locate(str(path)), options.threads, quick=options.quick)
    if not options.quick:
        ours += capacity(locate(str(path)), options.threads)
    ours += process(options.threads, quick=options.quick)
    rivals = peers.measure(path, _cases(options.threads, quick=options.quick)) if options.peers else []
    report([*roofs, *ours, *rivals, *against_peers(ours, rivals)], "engine", options.json)


def _cases(threads: int, *, quick: bool) -> Cases:
    if quick:
        return Cases(decode=BATCHES[:2], prefill=PREFILLS[:1], repeats=2, threads=threads)
    return Cases(BATCHES, PREFILLS, PROMPT, OUTPUT, threads=threads)


if __name__ == "__main__":
    main()
