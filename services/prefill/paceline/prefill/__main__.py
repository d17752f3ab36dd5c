"""`python -m paceline.prefill`: one prefill worker."""

import os

from paceline.prefill.service import PrefillService
from paceline.prefill.settings import Settings
from paceline.runtime.config import read
from paceline.runtime.run import run


def main() -> None:
    run(
        "prefill",
        "runs prompts and hands their KV pages to decode workers",
        lambda context: PrefillService(context, read(Settings, os.environ)),
    )


if __name__ == "__main__":
    main()
