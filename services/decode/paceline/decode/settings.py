"""What an operator can choose; `runtime.config.read` fills it from PACELINE_* variables."""

from dataclasses import dataclass

from paceline.worker.settings import WorkerSettings


@dataclass(frozen=True)
class Settings(WorkerSettings):
    """`draft` switches speculation on; a request may switch it off for itself."""

    kv_bytes: int = 1 << 30
    draft: bool = True
