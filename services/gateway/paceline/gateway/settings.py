"""Settings of the gateway; `runtime.config.read` fills them from PACELINE_* variables."""

from dataclasses import dataclass

from paceline.contracts.errors import InvalidRequest


@dataclass(frozen=True)
class Settings:
    """`model` is the GGUF file or Hugging Face directory that workers run, read here for its tokenizer and template;
    clients know it as `model_name`. `api_keys` are comma separated.

    At most `max_running` requests are in the mesh and `max_queue` wait; at most `max_uploads` bodies are read at once.
    A connection is closed when the headers of its next request are not there within `idle_timeout_s`. A request that
    ran once waits `failover_wait_s` for a worker to come back, and any request for a bus that is silent. Prompts below
    `handoff_min_tokens` are computed by decode workers.
    """

    model: str
    model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: str = ""
    allow_unauthenticated: bool = False
    max_running: int = 256
    max_queue: int = 256
    max_uploads: int = 128
    max_body_bytes: int = 4 << 20
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    keep_alive_s: float = 15.0
    failover_wait_s: float = 30.0
    handoff_min_tokens: int = 256
    tokenizer_threads: int = 2

    def __post_init__(self) -> None:
        least_of = {"port": 0, "max_running": 1, "max_queue": 0, "max_uploads": 1, "tokenizer_threads": 1}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                variable = f"PACELINE_{name.upper()}"
                raise InvalidRequest(f"{variable} must be at least {least}", param=variable)
        times = ("body_timeout_s", "idle_timeout_s", "request_timeout_s", "keep_alive_s")
        for name in ("max_body_bytes", *times):
            if getattr(self, name) <= 0:
                variable = f"PACELINE_{name.upper()}"
                raise InvalidRequest(f"{variable} must be greater than 0", param=variable)
