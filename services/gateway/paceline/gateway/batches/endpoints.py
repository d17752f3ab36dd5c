"""Which API a batch speaks."""

from paceline.gateway.dialect import Dialect
from paceline.gateway.dialects.chat import CHAT
from paceline.gateway.dialects.completions import COMPLETIONS
from paceline.gateway.dialects.responses import RESPONSES
from paceline.gateway.dialects.workers_ai import Run

_RUN = "/ai/run/"
_OPENAI: dict[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
}


def run_endpoint(model: str) -> str:
    """The endpoint of Workers AI's queued requests."""
    return _RUN + model


def is_run(endpoint: str) -> bool:
    return endpoint.startswith(_RUN)


def model_of(run: str) -> str:
    return run.removeprefix(_RUN)


def dialect_of(endpoint: str) -> Dialect:
    return Run(model_of(endpoint)) if is_run(endpoint) else _OPENAI[endpoint]
