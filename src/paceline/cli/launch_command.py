"""`paceline launch`: an agent that somebody else made, on a mesh."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from paceline.cli.completion import ChatError, Server, first_model
from paceline.cli.launch_plan import AGENTS, NO_KEY, AgentName, Plan, Target
from paceline.cli.screen import Screen

_NOT_FOUND = 127
"""What shells tell of a command that is not there."""
_SIGNALLED = 128
"""What shells add to the number of the signal that ended a command."""


def launch(
    agent: Annotated[AgentName, typer.Argument(help="Which agent.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="For the agent, as they are.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Show command, environment and files instead of running it.")
    ] = False,
    base_url: Annotated[
        str | None, typer.Option("--base-url", envvar="PACELINE_URL", help="Where the gateway is.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", envvar="PACELINE_PORT", help="Of a gateway on this machine.")
    ] = 8080,
    model: Annotated[
        str | None, typer.Option("--model", help="Model id; by default the first that is served.")
    ] = None,
) -> None:
    """Run a coding agent against the mesh, with settings of its own that leave the user's alone."""
    screen = Screen()
    key = os.environ.get("PACELINE_API_KEY")
    url = (base_url or f"http://127.0.0.1:{port}").rstrip("/").removesuffix("/v1")
    try:
        served = asyncio.run(first_model(Server(url, key)))
    except ChatError as e:
        screen.error(f"paceline launch: {e}")
        raise typer.Exit(1) from e
    target = Target(url, model or served, key or NO_KEY)
    chosen = AGENTS[agent]
    if show:
        directory = Path(tempfile.gettempdir()) / f"paceline-{agent}"
        text = chosen.plan(target, directory, arguments or ()).script()
        screen.line(text.replace(key, "$PACELINE_API_KEY") if key else text)
        return
    if shutil.which(chosen.command) is None:
        screen.error(f"paceline launch: {chosen.command} is not installed. Install it with: {chosen.install}")
        raise typer.Exit(_NOT_FOUND)
    # What agents leave running in the background may still write as they go.
    with tempfile.TemporaryDirectory(prefix=f"paceline-{agent}-", ignore_cleanup_errors=True) as own:
        status = run(chosen.plan(target, Path(own), arguments or ()))
    raise typer.Exit(status)


def run(plan: Plan) -> int:
    """Write the plan's files and run its command in this terminal; its exit status, as a shell has it."""
    for path, text in plan.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with _passing_signals_on() as children:
        child = subprocess.Popen(plan.argv, env={**os.environ, **plan.env})
        children.append(child)
        status = child.wait()
    return status if status >= 0 else _SIGNALLED - status


@contextmanager
def _passing_signals_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Outlive what ends the children, to clear up behind them. Ctrl-C they get from the terminal."""
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    def leave_it(number: int, _: FrameType | None) -> None: ...

    # Not SIG_IGN, which children would inherit.
    handlers = {signal.SIGINT: leave_it, signal.SIGTERM: forward, signal.SIGHUP: forward}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield children
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
