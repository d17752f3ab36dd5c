"""`paceline quantize`: a checkpoint in fewer bits."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.progress import download
from paceline.cli.pull import find
from paceline.cli.screen import Screen
from paceline.contracts.errors import InvalidRequest, PacelineError
from paceline.quantize.options import Fp8Scales, Options, Target
from paceline.quantize.report import LayerReport, Report
from paceline.quantize.run import quantize as run


def quantize(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face directory in BF16, F16, F32 or FP8, or a hub id.")
    ],
    output: Annotated[Path, typer.Argument(help="The new directory.")],
    to: Annotated[Target, typer.Option("--to", help="int4 (compressed-tensors) or fp8.")],
    group: Annotated[int, typer.Option(help="int4: columns that share a scale; 32, 64 or 128.")] = 32,
    fp8: Annotated[Fp8Scales, typer.Option(help="fp8: block (128 x 128, as DeepSeek) or channel.")] = "block",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="A module to leave alone: a name or its end, with * or as re:REGEX; may be repeated."
        ),
    ] = None,
    experts_only: Annotated[
        bool, typer.Option("--experts-only", help="Quantize routed experts and nothing else, as in Kimi K2.")
    ] = False,
    shard_gb: Annotated[float, typer.Option(help="The largest file, in GB.")] = 5.0,
    report: Annotated[Path | None, typer.Option(help="Write the errors there too, as JSON.")] = None,
) -> None:
    """Make an INT4 or FP8 checkpoint. Interrupted, the same command goes on where it stopped."""
    screen = Screen()
    try:
        options = Options(
            target=to,
            group=group,
            fp8=fp8,
            keep=tuple(keep or ()),
            experts_only=experts_only,
            shard_bytes=_shard_bytes(shard_gb),
        )
        source = find(model, screen)
        if source.kind != "hf":
            raise InvalidRequest(f"{source.path} is no Hugging Face directory")
        with download(screen, "quantizing") as progress:
            found = run(source.path, output, options, progress)
        if report is not None:
            _write(report, found, options)
    except PacelineError as e:
        screen.error(f"paceline quantize: {e}")
        raise typer.Exit(1) from e
    except KeyboardInterrupt as e:
        screen.error("paceline quantize: interrupted; the same command continues where it stopped")
        raise typer.Exit(130) from e
    screen.console.print(_table(found))
    for reason, modules in _reasons(found).items():
        screen.line(
            f"kept, {reason}: {modules[0]}" + (f" and {len(modules) - 1} more" if modules[1:] else "")
        )
    screen.line(f"{output} is complete")


def _shard_bytes(shard_gb: float) -> int:
    if not math.isfinite(shard_gb):
        raise InvalidRequest(f"--shard-gb {shard_gb} is no size")
    return round(shard_gb * 1e9)


def _write(path: Path, report: Report, options: Options) -> None:
    try:
        path.write_text(json.dumps({"options": asdict(options), **report.as_json()}, indent=2) + "\n")
    except OSError as e:
        raise InvalidRequest(f"{path} cannot be written: {e}") from e


def _table(report: Report) -> Table:
    table = Table(
        "layer", "relative RMS error", "largest absolute error", "bits per weight", "MB before", "MB after"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, layer in report.layers.items():
        table.add_row(name, *_cells(layer))
    table.add_section()
    table.add_row("in all", *_cells(report.total))
    return table


def _cells(layer: LayerReport) -> list[str]:
    sizes = [f"{layer.source_bytes / 1e6:,.1f}", f"{layer.output_bytes / 1e6:,.1f}"]
    if not layer.errors.weights:
        return ["", "", "", *sizes]
    errors = [f"{layer.errors.relative:.4f}", f"{layer.errors.largest:.2e}", f"{layer.bits_per_weight:.2f}"]
    return errors + sizes


def _reasons(report: Report) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for module, reason in report.kept.items():
        reasons.setdefault(reason, []).append(module)
    return reasons
