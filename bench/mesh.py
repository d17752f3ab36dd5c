"""What the mesh costs and gains: TTFT and ITL through HTTP, stage by stage, against the engine alone, and disaggregated
against unified workers under mixed load.

    python -m bench.mesh [--quick] [--json FILE]
"""

import asyncio
import json
import sys
import time

import aiohttp

from bench.load import Prompts, Sample, ask
from bench.meshes import running
from bench.rows import Row, arguments, quantile, report
from paceline.model.files import locate
from paceline.model.pull import ensure_default

OUTPUT = 64
STAGES = ("queue", "store", "prefill", "handoff", "decode_step")


async def closed_loop(
    session: aiohttp.ClientSession, model: str, prompts: list[str], concurrency: int
) -> list[Sample]:
    """All `prompts`, `concurrency` at a time, each followed by the next as soon as one ends."""
    waiting = iter(prompts)

    async def client() -> list[Sample]:
        return [await ask(session, model, prompt, OUTPUT, draft=False) for prompt in waiting]

    return [
        sample
        for samples in await asyncio.gather(*(client() for _ in range(concurrency)))
        for sample in samples
    ]


def latency_rows(what: str, config: dict[str, str | int | float | bool], samples: list[Sample]) -> list[Row]:
    ttfts = [s.ttft * 1e3 for s in samples]
    gaps = [gap * 1e3 for s in samples for gap in s.gaps]
    return [
        Row.of(what, config, f"{name}_p{round(q * 100)}", [quantile(values, q)], "ms")
        for name, values in (("ttft", ttfts), ("itl", gaps))
        for q in (0.5, 0.9)
    ]


def stage_rows(what: str, config: dict[str, str | int | float | bool], samples: list[Sample]) -> list[Row]:
    return [
        Row.of(what, config, f"stage_{stage}", [s.stages[stage] * 1e3 for s in samples], "ms")
        for stage in STAGES
    ]


async def through_http(
    model: str, prompts: Prompts, *, quick: bool
) -> tuple[list[Row], dict[int, list[Sample]]]:
    """Latency and stages by prompt length and concurrency; the samples at concurrency 1 by prompt length."""
    cases = (
        [(128, 1, 3), (2000, 1, 1)] if quick else [(n, c, max(5, c)) for n in (128, 2000) for c in (1, 8, 32)]
    )
    rows, single = [], {}
    async with running() as session:
        await ask(session, model, prompts.make(300), OUTPUT)
        for length, concurrency, count in cases:
            config: dict[str, str | int | float | bool] = {"prompt": length, "concurrency": concurrency}
            samples = await closed_loop(
                session, model, [prompts.make(length) for _ in range(count)], concurrency
            )
            rows += latency_rows("mesh", config, samples) + stage_rows("mesh", config, samples)
            if concurrency == 1:
                single[length] = samples
    return rows, single


async def engine_alone(length: int, repeat: int) -> dict[str, list[float]]:
    """`bench.inprocess` in a process of its own, when no mesh runs."""
    command = (
        "-m",
        "bench.inprocess",
        "--prompt",
        str(length),
        "--output",
        str(OUTPUT),
        "--repeat",
        str(repeat),
    )
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    figures: dict[str, list[float]] = json.loads(output)
    return figures


async def overhead(single: dict[int, list[Sample]], *, quick: bool) -> list[Row]:
    """TTFT and ITL of the mesh as a multiple of the engine's alone, at concurrency 1."""
    rows = []
    for length, samples in single.items():
        if quick and length > 128:
            continue
        alone = await engine_alone(length, len(samples))
        config: dict[str, str | int | float | bool] = {"prompt": length, "concurrency": 1}
        gaps = [gap for s in samples for gap in s.gaps]
        for name, mesh, engine in (
            ("ttft", [s.ttft for s in samples], alone["ttft"]),
            ("itl", gaps, alone["gaps"]),
        ):
            base = quantile(engine, 0.5)
            rows.append(Row.of("engine alone", config, f"{name}_p50", [base * 1e3], "ms"))
            rows.append(Row.of("mesh / engine alone", config, name, [quantile(mesh, 0.5) / base], "x"))
    return rows


async def mixed(
    session: aiohttp.ClientSession, model: str, prompts: Prompts, seconds: float, arriving: int
) -> tuple[list[float], list[float]]:
    """ITL of four streams and TTFT of the prompts of `arriving` tokens that come beside them, in ms."""
    end = time.perf_counter() + seconds
    gaps: list[float] = []
    ttfts: list[float] = []

    async def stream() -> None:
        while time.perf_counter() < end:
            sample = await ask(session, model, prompts.make(128), OUTPUT, draft=False)
            gaps.extend(gap * 1e3 for gap in sample.gaps)

    async def arrivals() -> None:
        while time.perf_counter() < end:
            sample = await ask(session, model, prompts.make(arriving), 8, draft=False)
            ttfts.append(sample.ttft * 1e3)

    await asyncio.gather(*(stream() for _ in range(4)), arrivals())
    return gaps, ttfts


async def disaggregated_against_unified(model: str, prompts: Prompts, *, quick: bool) -> list[Row]:
    """Two worker processes each way, the same load one after the other."""
    rows = []
    itl: dict[str, float] = {}
    seconds, arriving = (2.0, 600) if quick else (60.0, 2000)
    for what, flags in (("disaggregated", ()), ("unified", ("--unified", "--decode", "2"))):
        async with running(*flags) as session:
            await ask(session, model, prompts.make(300), OUTPUT)
            gaps, ttfts = await mixed(session, model, prompts, seconds, arriving)
        config: dict[str, str | int | float | bool] = {"workers": 2, "streams": 4, "arriving": arriving}
        for name, values in (("itl", gaps), ("ttft", ttfts)):
            rows += [
                Row.of(what, config, f"{name}_p{p}", [quantile(values, p / 100)], "ms") for p in (50, 90, 99)
            ]
        itl[what] = quantile(gaps, 0.9)
    ratio = itl["disaggregated"] / itl["unified"]
    rows.append(
        Row.of(
            "disaggregated / unified",
            {"workers": 2, "streams": 4, "arriving": arriving},
            "itl_p90",
            [ratio],
            "x",
        )
    )
    return rows


async def run(*, quick: bool) -> list[Row]:
    files = locate(str(ensure_default(lambda done, total: None)))
    prompts = Prompts(files)
    rows, single = await through_http(files.name, prompts, quick=quick)
    rows += await overhead(single, quick=quick)
    return rows + await disaggregated_against_unified(files.name, prompts, quick=quick)


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    report(asyncio.run(run(quick=options.quick)), "mesh", options.json)


if __name__ == "__main__":
    main()
