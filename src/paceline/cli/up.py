"""`paceline up`: a whole mesh on this machine, in the foreground."""

import asyncio
import os
from contextlib import redirect_stderr
from dataclasses import replace
from typing import Annotated

import typer

from paceline.cli import ports, runfile
from paceline.cli.mesh import Address, Mesh
from paceline.cli.preflight import check
from paceline.cli.processes import Options
from paceline.cli.pull import find
from paceline.cli.rundir import RunDir
from paceline.cli.screen import Screen
from paceline.contracts.errors import PacelineError
from paceline.engine.layout import KvDtype
from paceline.engine.registry import ComputeDtype, EngineName, Weights
from paceline.gateway.auth import Keys, check_exposure
from paceline.gateway.settings import Settings
from paceline.model.files import ModelFiles
from paceline.runtime.config import read
from paceline.telemetry import logs


def up(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            envvar="PACELINE_MODEL",
            help="A .gguf file, a Hugging Face directory, or a hub id.",
            show_default="SmolLM2-135M-Instruct",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", envvar="PACELINE_PORT", min=0, max=65535, help="Of the gateway; 0 is any free one."
        ),
    ] = 8080,
    prefill: Annotated[int, typer.Option("--prefill", min=0, help="Prefill workers.")] = 1,
    decode: Annotated[
        int | None,
        typer.Option("--decode", min=1, help="Decode workers.", show_default="1, or 2 with --unified"),
    ] = None,
    unified: Annotated[bool, typer.Option("--unified", help="Decode workers run the prompts too.")] = False,
    draft: Annotated[
        bool, typer.Option("--draft/--no-draft", help="Draft tokens for the decode workers.")
    ] = True,
    engine: Annotated[
        EngineName,
        typer.Option(
            "--engine",
            envvar="PACELINE_ENGINE",
            help="What runs the model; auto is cpu on a CPU, or torch for what cpu does not run.",
        ),
    ] = "auto",
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            envvar="PACELINE_DEVICE",
            help="Of the workers: cpu, cuda or cuda:N.",
            show_default="cpu",
        ),
    ] = None,
    dtype: Annotated[
        ComputeDtype | None,
        typer.Option(
            "--dtype", envvar="PACELINE_DTYPE", help="Of engine torch: its arithmetic.", show_default="auto"
        ),
    ] = None,
    weights: Annotated[
        Weights | None,
        typer.Option(
            "--weights",
            envvar="PACELINE_WEIGHTS",
            help="Of engine cpu: what it makes of the model's; auto keeps them as they are.",
            show_default="auto",
        ),
    ] = None,
    decode_weights: Annotated[
        Weights | None, typer.Option("--decode-weights", help="Those of decode workers.")
    ] = None,
    kv_dtype: Annotated[
        KvDtype | None,
        typer.Option(
            "--kv-dtype",
            help="Of cached keys and values.",
            show_default="bfloat16, or float32 with --dtype float32",
        ),
    ] = None,
    decode_kv_dtype: Annotated[
        KvDtype | None,
        typer.Option(
            "--decode-kv-dtype", help="Of those on decode workers: pages are converted on their way."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every log line here too.")] = False,
) -> None:
    """Serve a model on this machine: NATS, a gateway and one worker of each role. Ctrl-C drains and stops."""
    options = Options(
        model=model,
        port=port,
        prefill=prefill,
        decode=decode,
        unified=unified,
        draft=draft,
        engine=engine,
        device=device,
        dtype=dtype,
        weights=weights,
        decode_weights=decode_weights,
        kv_dtype=kv_dtype,
        decode_kv_dtype=decode_kv_dtype,
        verbose=verbose,
    )
    screen = Screen()
    try:
        address = _address(port)
        files = find(model, screen)
        options = replace(options, engine=check(files, options, screen))
        status = asyncio.run(_run(options, files, address, screen))
    except ports.PortTaken as e:
        screen.error(
            f"paceline up: {e}. Choose another with --port N or PACELINE_PORT=N; 0 takes a free one."
        )
        status = 1
    except (PacelineError, OSError) as e:
        screen.error(f"paceline up: {e}")
        status = 1
    raise typer.Exit(status)


def _address(port: int) -> Address:
    """Where the gateway can listen: found out before anything is fetched or started.

    Raises `PortTaken`, and `InvalidRequest` for settings that the gateway will refuse.
    """
    settings = read(Settings, {**os.environ, "PACELINE_MODEL": "found later", "PACELINE_PORT": str(port)})
    keys = Keys.of(settings.api_keys, settings.keys_file)
    check_exposure(settings.host, keys, allowed=settings.allow_unauthenticated)
    return Address(settings.host, ports.reserve(settings.host, port))


async def _run(options: Options, files: ModelFiles, address: Address, screen: Screen) -> int:
    state = runfile.state_dir(address.port)
    state.mkdir(parents=True, exist_ok=True)
    run_dir = await RunDir.create(link=runfile.link_path(address.port))
    try:
        # NATS logs through us, and this terminal is for people.
        with (state / "up.log").open("w") as log:
            with redirect_stderr(log):
                logs.configure("info", "json")
            return await Mesh(options, files, address, run_dir, screen).run()
    finally:
        await run_dir.close()
