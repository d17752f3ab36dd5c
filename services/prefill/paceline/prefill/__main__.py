"""`python -m paceline.prefill`: one prefill worker."""

import os
from dataclasses import dataclass

from paceline.prefill.service import PrefillService
from paceline.runtime.config import read
from paceline.runtime.run import run
from paceline.worker.settings import WorkerSettings


@dataclass(frozen=True)
class Settings(WorkerSettings):
    """Prompts pass through; half a gigabyte keeps the prefixes of a few sessions."""

    kv_bytes: int = 512 << 20


def main() -> None:
    run("prefill", "runs prompts and hands their KV pages to decode workers", lambda context: PrefillService(context, read(Settings, os.environ)))


if __name__ == "__main__":
    main()
