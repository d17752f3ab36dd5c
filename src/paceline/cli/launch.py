"""Starts one service process so that it cannot outlive the run."""

import asyncio
import os
import sys
from pathlib import Path

from paceline.bus.child import die_with_parent
from paceline.cli.processes import ChildSpec
from paceline.cli.supervisor import Launch


def service(spec: ChildSpec, *, log: Path, lifeline: int) -> Launch:
    """How to start `spec`. Its output is appended to `log`; `lifeline` is see `RunDir`."""

    async def launch() -> asyncio.subprocess.Process:
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"paceline.{spec.role}"),
                # numpy multiplies little here, and its threads would spin on cores that engines use.
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ, **spec.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(lifeline,),
                # Ctrl-C in the terminal is for the supervisor, which then drains in order.
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    return launch
