"""`paceline plan`: whether a model fits on some GPUs, and how many tokens beside it."""

from dataclasses import asdict
from typing import Annotated, Literal

import msgspec
import typer

from paceline.cli import plan_screen
from paceline.cli.screen import Screen
from paceline.contracts.errors import InvalidRequest
from paceline.engine.layout import KvDtype
from paceline.planner import mix, model, published
from paceline.planner.parallel import Parallel
from paceline.planner.plan import Request, Role, check_cut, make
from paceline.planner.search import less_tensor_parallel
from paceline.planner.summary import summarise
from paceline.planner.units import parse_size

Kv = Literal["bfloat16", "bf16", "fp8_e4m3", "fp8", "fp8_per_token_head"]

_KV: dict[Kv, KvDtype] = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "fp8_e4m3": "fp8_e4m3",
    "fp8": "fp8_e4m3",
    "fp8_per_token_head": "fp8_per_token_head",
}
_ROLES: dict[str, tuple[Role, ...]] = {
    "prefill": ("prefill",),
    "decode": ("decode",),
    "both": ("prefill", "decode"),
}


def plan(
    model_name: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A shape that ships with Paceline, a config.json or its directory, or a hub id in the hub's cache.",
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, show_default="tp x pp x dp")] = None,
    gpu_memory: Annotated[
        str, typer.Option("--gpu-memory", help="Of one GPU: 80, which is GiB, or 80GB, or 80GiB.")
    ] = "141",
    tp: Annotated[int | None, typer.Option("--tp", min=1, show_default="gpus / (pp x dp)")] = None,
    pp: Annotated[int, typer.Option("--pp", min=1, help="Stages of layers.")] = 1,
    ep: Annotated[int, typer.Option("--ep", min=1, help="Ranks that get whole experts.")] = 1,
    dp: Annotated[
        int, typer.Option("--dp", min=1, help="Ranks with attention for requests of their own.")
    ] = 1,
    weights: Annotated[
        mix.Weights, typer.Option("--weights", help="How weights are stored; native is as published.")
    ] = "native",
    group: Annotated[int, typer.Option("--group", help="Weights per scale of INT4: 32, 64 or 128.")] = 32,
    rest: Annotated[
        mix.Rest | None,
        typer.Option(
            "--rest", help="With INT4 experts, what other linear layers are stored in.", show_default="bf16"
        ),
    ] = None,
    kv: Annotated[
        Kv, typer.Option("--kv", "--kv-dtype", help="KV of decode; bf16 and fp8 are short for the others.")
    ] = "bfloat16",
    prefill_kv: Annotated[
        Kv, typer.Option("--prefill-kv", "--prefill-kv-dtype", help="KV of prefill.")
    ] = "bfloat16",
    role: Annotated[Literal["prefill", "decode", "both"], typer.Option("--role")] = "both",
    context: Annotated[
        int | None,
        typer.Option("--context", min=1, help="Tokens of one sequence.", show_default="the model's most"),
    ] = None,
    chunk: Annotated[int, typer.Option("--chunk", min=1, help="Tokens of a step of prefill.")] = 8192,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences of a step of decode.")] = 256,
    reserve: Annotated[
        str, typer.Option("--reserve", help="Per GPU, for the driver, collectives and CUDA graphs.")
    ] = "2.5",
    kv_pool: Annotated[
        str | None, typer.Option("--kv-pool", help="KV per GPU, instead of all memory that is left.")
    ] = None,
    mtp: Annotated[bool, typer.Option("--mtp", help="With the layer for multi-token prediction.")] = False,
    show_published: Annotated[
        bool, typer.Option("--published", help="Published figures beside this arithmetic; no MODEL.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Work out what fits: weights, workspace and KV per GPU, from a model's config.json alone.

    What does not fit is an answer too, with exit status 0: for programs, --json says it in "fits". Bad input is 2.
    """
    screen = Screen()
    try:
        if show_published:
            _show_published(screen, model_name, as_json=as_json)
            return
        found = model.find(_required(model_name))
        request = Request(
            model=found,
            mix=mix.choose(weights, group, rest, found),
            parallel=_parallel(gpus, tp, pp, ep, dp),
            gpu_memory=_positive(gpu_memory, "--gpu-memory"),
            roles=_ROLES[role],
            kv={"prefill": _KV[prefill_kv], "decode": _KV[kv]},
            reserve=parse_size(reserve, "--reserve"),
            chunk=chunk,
            batch=batch,
            context=context,
            kv_pool=None if kv_pool is None else parse_size(kv_pool, "--kv-pool"),
            mtp=mtp,
        )
        if tp is None:
            _check_default_tp(request)
        made = make(request)
        summary = summarise(made)
    except InvalidRequest as e:
        screen.error(f"paceline plan: {e}")
        raise typer.Exit(2) from e
    if as_json:
        screen.line(msgspec.json.encode(summary).decode())
    else:
        plan_screen.show(made, summary, screen)


def _required(name: str | None) -> str:
    if name is None:
        raise InvalidRequest(
            f"name a MODEL: {', '.join(model.shipped())}, a config.json or its directory; or give --published"
        )
    return name


def _positive(text: str, option: str) -> int:
    if size := parse_size(text, option):
        return size
    raise InvalidRequest(f"{option} {text!r} is nothing")


def _parallel(gpus: int | None, tp: int | None, pp: int, ep: int, dp: int) -> Parallel:
    """Raises `InvalidRequest` when the factors do not make up the GPUs."""
    if tp is None:
        tp = (gpus or pp * dp) // (pp * dp) or 1
    parallel = Parallel(tp=tp, pp=pp, ep=ep, dp=dp)
    if gpus is not None and gpus != parallel.gpus:
        raise InvalidRequest(f"--gpus {gpus} is not tp x pp x dp = {tp} x {pp} x {dp} = {parallel.gpus}")
    return parallel


def _check_default_tp(request: Request) -> None:
    """Raises `InvalidRequest` when the model cannot be cut so, with what to give in its place."""
    try:
        check_cut(request)
    except InvalidRequest as e:
        if (other := less_tensor_parallel(request)) is None:
            raise
        ep = f" --ep {other.ep}" if other.ep != request.parallel.ep else ""
        raise InvalidRequest(f"{e}; give --tp {other.tp} --pp {other.pp}{ep}") from e


def _show_published(screen: Screen, model_name: str | None, *, as_json: bool) -> None:
    if model_name is not None:
        raise InvalidRequest(f"--published is about other models than {model_name}: leave one of them out")
    claims = published.claims()
    if as_json:
        records = [{**asdict(c), "verdict": c.verdict} for c in claims]
        screen.line(msgspec.json.encode(records).decode())
    else:
        plan_screen.show_claims(claims, screen)
