"""The command line needs no more than its extra installs, so that an image with it alone can fetch a model."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

REPO = Path(__file__).parents[3]


def test_the_command_line_imports_only_what_its_extra_installs() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    installed = {re.split(r"[^\w-]", name)[0] for name in [*project["dependencies"], *extras["cli"]]}
    others = {re.split(r"[^\w-]", name)[0] for extra in extras.values() for name in extra} - installed
    blocked = sorted(module for module, names in packages_distributions().items() if others & set(names))
    assert "torch" in blocked
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked}, None)); import paceline.cli.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
