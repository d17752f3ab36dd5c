"""`paceline status`: who serves, and how busy they are."""

import asyncio
from contextlib import nullcontext
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from paceline.bus.nats import NatsBus
from paceline.cli import runfile
from paceline.cli.screen import Screen
from paceline.cli.survey import Row, survey
from paceline.contracts.errors import Unavailable

_CONNECT_S = 3.0
_REFRESH_S = 1.0
_NUMBERS = ("run", "wait", "used/cached/pages", "hits", "tok/s", "restarts")


def status(
    nats: Annotated[
        str | None,
        typer.Option("--nats", help="URL of the NATS server.", show_default="that of the mesh on --port"),
    ] = None,
    port: Annotated[
        int,
        typer.Option("--port", envvar="PACELINE_PORT", help="The gateway's port of a mesh on this machine."),
    ] = 8080,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
) -> None:
    """Show the services of a mesh: state, load, pages, hit rate."""
    screen = Screen()
    run = runfile.read(port) if nats is None else None
    url = nats or (run.nats_url if run else None)
    if url is None:
        screen.error(
            f"No mesh runs on port {port}. Start one with: paceline up (or name a server with --nats)."
        )
        raise typer.Exit(1)
    try:
        asyncio.run(_show(url, run, screen.console, as_json=as_json, watch=watch))
    except Unavailable as e:
        screen.error(f"paceline status: {e}")
        raise typer.Exit(1) from e
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _show(
    url: str, run: runfile.RunInfo | None, console: Console, *, as_json: bool, watch: bool
) -> None:
    bus = await NatsBus.connect(url, name="paceline status", timeout=_CONNECT_S)
    try:
        with Live(console=console, auto_refresh=False) if watch and not as_json else nullcontext() as live:
            while True:
                rows = await _rows(bus, run)
                if live:
                    live.update(table(rows), refresh=True)
                elif as_json:
                    console.print(
                        msgspec.json.encode(rows).decode(), soft_wrap=True, markup=False, highlight=False
                    )
                elif rows:
                    console.print(table(rows))
                else:
                    raise Unavailable("no service answers")
                if not watch:
                    return
                await asyncio.sleep(_REFRESH_S)
    finally:
        await bus.close()


async def _rows(bus: NatsBus, run: runfile.RunInfo | None) -> list[Row]:
    rows = await survey(bus, run.workers if run else ())
    if run is None:
        return rows
    now = runfile.read(run.port) or run
    return [msgspec.structs.replace(row, restarts=now.restarts.get(row.worker)) for row in rows]


def table(rows: list[Row]) -> Table:
    """The rows for people. In a narrow terminal the name of the model gives way."""
    names = ("service", "worker", "state", *_NUMBERS, "engine", "kv")
    cells = [_cells(row) for row in rows]
    grid = Table(box=None, pad_edge=False, collapse_padding=True)
    for i, name in enumerate(names):
        width = max(len(text) for text in (name, *(row[i] for row in cells)))
        grid.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True, min_width=width)
    grid.add_column("model", no_wrap=True, overflow="ellipsis")
    for row, texts in zip(rows, cells, strict=True):
        grid.add_row(*texts, row.model)
    return grid


def _cells(row: Row) -> tuple[str, ...]:
    return (
        *(row.service, row.worker, row.state, str(row.running), str(row.waiting)),
        f"{row.pages_used}/{row.pages_cached}/{row.pages_total}" if row.pages_total else "-",
        "-" if row.hit_rate is None else f"{row.hit_rate:.0%}",
        f"{row.tokens_per_s:.1f}" if row.tokens_per_s else "-",
        "-" if row.restarts is None else str(row.restarts),
        row.engine or "-",
        row.kv_dtype or "-",
    )
