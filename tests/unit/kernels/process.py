"""Processes in which Triton decorates for a GPU, which ours does not."""

import os
import subprocess
import sys


def run_compiling(module: str, *arguments: str) -> str:
    """What `python -m module` prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout
