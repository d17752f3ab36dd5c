"""`python -m paceline.decode`: one decode worker."""

import os

from paceline.decode.service import DecodeService
from paceline.decode.settings import Settings
from paceline.runtime.config import read
from paceline.runtime.run import run


def main() -> None:
    run(
        "decode",
        "generates tokens in a continuous batch",
        lambda context: DecodeService(context, read(Settings, os.environ)),
    )


if __name__ == "__main__":
    main()
