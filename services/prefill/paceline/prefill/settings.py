"""What an operator can choose; `runtime.config.read` fills it from PACELINE_* variables."""

from dataclasses import dataclass

from paceline.worker.settings import WorkerSettings


@dataclass(frozen=True)
class Settings(WorkerSettings):
    """Prompts pass through; half a gigabyte keeps the prefixes of a few sessions."""

    kv_bytes: int = 512 << 20
