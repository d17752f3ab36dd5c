"""`python -m paceline.drafter`: drafts for decode workers."""

import os

from paceline.drafter.service import DrafterService
from paceline.drafter.settings import Settings
from paceline.runtime.config import read
from paceline.runtime.run import run


def main() -> None:
    run(
        "drafter",
        "proposes tokens to decode workers",
        lambda context: DrafterService(context, read(Settings, os.environ)),
    )


if __name__ == "__main__":
    main()
