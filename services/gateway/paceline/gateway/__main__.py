"""`python -m paceline.gateway`"""

import os

from paceline.gateway.service import Gateway
from paceline.gateway.settings import Settings
from paceline.runtime.config import read
from paceline.runtime.context import Context
from paceline.runtime.run import run


def _build(context: Context) -> Gateway:
    return Gateway(context, read(Settings, os.environ))


def main() -> None:
    run("gateway", "OpenAI-compatible HTTP front of the mesh", _build)


if __name__ == "__main__":
    main()
