"""What the mesh costs and gains: latency and throughput through HTTP, stage by stage, against the engine alone, and
disaggregated against unified workers under mixed load.

    python -m bench.mesh [--quick] [--engine NAME] [--json FILE]
"""

import asyncio
import json
import sys
import time
from statistics import median
from typing import TypeAlias, get_args

import uvloop

from bench.load import Gateway, Prompts, Sample, ask, ask_in_turn, ask_together, decode_rate
from bench.meshes import Running, running
from bench.rows import Row, arguments, quantile, report
from paceline.engine.registry import EngineName
from paceline.model.files import locate
from paceline.model.pull import ensure_default

OUTPUT = 64
PROMPT = 128
STREAMS = (1, 8, 32)
STAGES = ("queue", "store", "prefill", "handoff", "decode_step")

Config: TypeAlias = dict[str, str | int | float | bool]
Runs: TypeAlias = list[list[Sample]]
"""For each repetition the answers of all streams."""


def latency_rows(what: str, config: Config, samples: list[Sample]) -> list[Row]:
    ttfts = [s.ttft * 1e3 for s in samples]
    gaps = [gap * 1e3 for s in samples for gap in s.gaps]
    return [
        Row.of(what, config, f"{name}_p{round(q * 100)}", [quantile(values, q)], "ms")
        for name, values in (("ttft", ttfts), ("itl", gaps))
        for q in (0.5, 0.9)
    ]


def stage_rows(what: str, config: Config, samples: list[Sample]) -> list[Row]:
    return [
        Row.of(what, config, f"stage_{stage}", [s.stages[stage] * 1e3 for s in samples], "ms")
        for stage in STAGES
    ]


async def in_turn(
    mesh: Running, prompts: Prompts, *, quick: bool
) -> tuple[list[Row], dict[int, list[Sample]]]:
    """Latency and stages by prompt length and concurrency; the samples at concurrency 1 by prompt length."""
    cases = (
        [(128, 1, 3), (2000, 1, 1)] if quick else [(n, c, max(5, c)) for n in (128, 2000) for c in (1, 8, 32)]
    )
    rows, single = [], {}
    for length, concurrency, count in cases:
        config: Config = {"prompt": length, "concurrency": concurrency}
        texts = [prompts.make(length) for _ in range(count)]
        samples = await ask_in_turn(mesh.gateway, texts, OUTPUT, concurrency, draft=False)
        rows += latency_rows("mesh", config, samples) + stage_rows("mesh", config, samples)
        if concurrency == 1:
            single[length] = samples
    return rows, single


async def together(mesh: Running, prompts: Prompts, *, quick: bool) -> tuple[list[Row], dict[int, Runs]]:
    """What each service costs, and the answers of so many requests that arrive together, by their number."""
    rows, streams = [], {}
    for count in STREAMS:
        before = mesh.cpu_seconds()
        runs = []
        for _ in range(1 if quick else 5):
            texts = [prompts.make(PROMPT) for _ in range(count)]
            runs.append(await ask_together(mesh.gateway, texts, OUTPUT, draft=False))
        tokens = len(runs) * count * OUTPUT
        for service, seconds in mesh.cpu_seconds().items():
            config: Config = {"streams": count, "prompt": PROMPT, "service": service}
            cost = (seconds - before[service]) / tokens * 1e6
            rows.append(Row.of("mesh", config, "cpu_us_per_token", [cost], "us"))
        streams[count] = runs
    return rows, streams


async def engine_alone(engine: EngineName, prompt: int, streams: int, repeat: int) -> Runs:
    """`bench.inprocess` in a process of its own, when no mesh runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.inprocess", "--engine", engine, "--output", str(OUTPUT)),
        *("--prompt", str(prompt), "--streams", str(streams), "--repeat", str(repeat)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    # Its log comes before.
    runs = json.loads(output.splitlines()[-1])
    return [[Sample(**sample) for sample in run] for run in runs]


async def overhead(engine: EngineName, single: dict[int, list[Sample]], *, quick: bool) -> list[Row]:
    """TTFT and ITL of the mesh as a multiple of the engine's alone, at concurrency 1."""
    rows = []
    for length, samples in single.items():
        if quick and length > PROMPT:
            continue
        alone = [run[0] for run in await engine_alone(engine, length, 1, len(samples))]
        config: Config = {"prompt": length, "concurrency": 1}
        for name, mesh, base in (
            ("ttft", _ttfts(samples), _ttfts(alone)),
            ("itl", _gaps(samples), _gaps(alone)),
        ):
            rows.append(Row.of("engine alone", config, f"{name}_p50", [quantile(base, 0.5) * 1e3], "ms"))
            ratio = quantile(mesh, 0.5) / quantile(base, 0.5)
            rows.append(Row.of("mesh / engine alone", config, name, [ratio], "x"))
    return rows


async def throughput(engine: EngineName, streams: dict[int, Runs]) -> list[Row]:
    """Decode throughput and first tokens of requests that arrive together, with the mesh and without."""
    rows = []
    for count, mesh in streams.items():
        config: Config = {"streams": count, "prompt": PROMPT}
        alone = await engine_alone(engine, PROMPT, count, len(mesh))
        for what, runs in (("mesh", mesh), ("engine alone", alone)):
            rates, firsts = _rates(runs), [quantile(_ttfts(run), 0.5) * 1e3 for run in runs]
            rows.append(Row.of(what, config, "decode_tok_s", rates, "tok/s"))
            rows.append(Row.of(what, config, "ttft_p50", firsts, "ms"))
        ratio = median(_rates(mesh)) / median(_rates(alone))
        rows.append(Row.of("mesh / engine alone", config, "decode_tok_s", [ratio], "x"))
    return rows


def _rates(runs: Runs) -> list[float]:
    return [decode_rate(run) for run in runs]


def _ttfts(samples: list[Sample]) -> list[float]:
    return [sample.ttft for sample in samples]


def _gaps(samples: list[Sample]) -> list[float]:
    return [gap for sample in samples for gap in sample.gaps]


async def mixed(
    gateway: Gateway, prompts: Prompts, seconds: float, arriving: int
) -> tuple[list[float], list[float]]:
    """ITL of four streams and TTFT of the prompts of `arriving` tokens that come beside them, in ms."""
    end = time.perf_counter() + seconds
    gaps: list[float] = []
    ttfts: list[float] = []

    async def stream() -> None:
        while time.perf_counter() < end:
            sample = await ask(gateway, prompts.make(PROMPT), OUTPUT, draft=False)
            gaps.extend(gap * 1e3 for gap in sample.gaps)

    async def arrivals() -> None:
        while time.perf_counter() < end:
            sample = await ask(gateway, prompts.make(arriving), 8, draft=False)
            ttfts.append(sample.ttft * 1e3)

    await asyncio.gather(*(stream() for _ in range(4)), arrivals())
    return gaps, ttfts


async def disaggregated_against_unified(
    engine: EngineName, model: str, prompts: Prompts, *, quick: bool
) -> list[Row]:
    """Two worker processes each way, the same load one after the other."""
    rows = []
    itl: dict[str, float] = {}
    seconds, arriving = (2.0, 600) if quick else (60.0, 2000)
    config: Config = {"workers": 2, "streams": 4, "arriving": arriving}
    for what, flags in (("disaggregated", ()), ("unified", ("--unified", "--decode", "2"))):
        async with running(model, "--engine", engine, *flags) as mesh:
            await ask(mesh.gateway, prompts.make(300), OUTPUT)
            gaps, ttfts = await mixed(mesh.gateway, prompts, seconds, arriving)
        for name, values in (("itl", gaps), ("ttft", ttfts)):
            rows += [
                Row.of(what, config, f"{name}_p{p}", [quantile(values, p / 100)], "ms") for p in (50, 90, 99)
            ]
        itl[what] = quantile(gaps, 0.9)
    ratio = itl["disaggregated"] / itl["unified"]
    return [*rows, Row.of("disaggregated / unified", config, "itl_p90", [ratio], "x")]


async def run(engine: EngineName, *, quick: bool) -> list[Row]:
    files = locate(str(ensure_default(lambda done, total: None)))
    prompts = Prompts(files)
    async with running(files.name, "--engine", engine) as mesh:
        await ask(mesh.gateway, prompts.make(300), OUTPUT)
        rows, single = await in_turn(mesh, prompts, quick=quick)
        costs, streams = await together(mesh, prompts, quick=quick)
    rows += costs + await overhead(engine, single, quick=quick) + await throughput(engine, streams)
    return rows + await disaggregated_against_unified(engine, files.name, prompts, quick=quick)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--engine", choices=get_args(EngineName), default="auto")
    options = parser.parse_args()
    report(uvloop.run(run(options.engine, quick=options.quick)), "mesh", options.json)


if __name__ == "__main__":
    main()
