"""What an operator can choose; `runtime.config.read` fills it from PACELINE_* variables."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """`run_dir` is shared by all workers of a host. `kvstore_bytes` bounds the pages, which never take more
    than a quarter of the free memory. A lease ends by itself after `kvstore_lease_s` seconds.
    """

    run_dir: Path
    kvstore_bytes: int = 1 << 30
    kvstore_lease_s: float = 30.0
