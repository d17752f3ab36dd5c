"""`python -m paceline.kvstore`: the page store of one host."""

import os

from paceline.kvstore.service import KvStoreService
from paceline.kvstore.settings import Settings
from paceline.runtime.config import read
from paceline.runtime.run import run


def main() -> None:
    run(
        "kvstore",
        "keeps the KV pages of a host's workers",
        lambda context: KvStoreService(context, read(Settings, os.environ)),
    )


if __name__ == "__main__":
    main()
