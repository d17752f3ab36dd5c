"""Settings of the gateway; `runtime.config.read` fills them from PACELINE_* variables."""

from dataclasses import dataclass

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.prices import parse_prices


@dataclass(frozen=True)
class Settings:
    """`model` is the GGUF file or Hugging Face directory that workers run, read here for its tokenizer and template;
    clients know it as `model_name` and by `model_aliases`, which are comma separated and where * is any. `api_keys` are
    comma separated; `keys_file` is described in `keyfile`.

    At most `max_running` requests are in the mesh and `max_queue` wait; at most `max_uploads` bodies are read at once.
    A connection is closed when the headers of its next request are not there within `idle_timeout_s`. A request that
    ran once waits `failover_wait_s` for a worker to come back, and any request for a bus that is silent. Prompts below
    `handoff_min_tokens` are computed by decode workers. `prices` are those of a million tokens of input, cached input
    and output, by comma; with them usage tells a cost.

    Of batches a gateway runs `batch_max_running` requests at once, and none while half of `max_running` are in use. An
    input file has at most `batch_max_file_bytes` bytes and `batch_max_lines` requests; a tenant has at most
    `batch_max_batches` batches that are not finished.
    """

    model: str
    model_name: str | None = None
    model_aliases: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: str = ""
    keys_file: str = ""
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
    prices: str = ""
    batch_max_running: int = 32
    batch_max_file_bytes: int = 100 << 20
    batch_max_lines: int = 50_000
    batch_max_batches: int = 100

    def __post_init__(self) -> None:
        least_of = {"port": 0, "max_running": 1, "max_queue": 0, "max_uploads": 1, "tokenizer_threads": 1}
        least_of |= {f"batch_max_{of}": 1 for of in ("running", "file_bytes", "lines", "batches")}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                variable = f"PACELINE_{name.upper()}"
                raise InvalidRequest(f"{variable} must be at least {least}", param=variable)
        try:
            parse_prices(self.prices)
        except ValueError as e:
            raise InvalidRequest(f"PACELINE_PRICES: {e}", param="PACELINE_PRICES") from e
        times = ("body_timeout_s", "idle_timeout_s", "request_timeout_s", "keep_alive_s")
        for name in ("max_body_bytes", *times):
            if getattr(self, name) <= 0:
                variable = f"PACELINE_{name.upper()}"
                raise InvalidRequest(f"{variable} must be greater than 0", param=variable)
