"""`python -m paceline.decode`: one decode worker."""

import os

from paceline.decode.service import DecodeService, Settings
from paceline.runtime.config import read
from paceline.runtime.run import run


def main() -> None:
    settings = read(Settings, os.environ)
    run("decode", "generates tokens in a continuous batch", lambda context: DecodeService(context, settings))


if __name__ == "__main__":
    main()
