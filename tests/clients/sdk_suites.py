"""Which of the SDKs' own tests run against a mesh: those that create answers. What is left out says why."""

from dataclasses import dataclass, field
from typing import Any

from tests.clients.model import NAME

AUDIO = "asks for audio, which no model here can give"
BIAS = "biases a token called foo, which is no token's id"
BACKGROUND = "asks for a response in the background, which batches are for"
NO_SCHEMA = "gives a schema that is none: a property is the string bar"


@dataclass(frozen=True)
class Suite:
    """`file` of the source distribution of `package`, of which `select` (as pytest's -k) runs but for `left_out`: names
    of tests with the reason. `passes` is how many are left. `body` is in each request: no mesh has the models that the
    tests name."""

    package: str
    file: str
    select: str
    passes: int
    left_out: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=lambda: {"model": NAME})
    base: str = "/v1"

    @property
    def expression(self) -> str:
        """For pytest's -k."""
        return " and not ".join([f"({self.select})", *self.left_out])


SUITES = [
    Suite(
        "openai",
        "tests/api_resources/chat/test_completions.py",
        "create",
        30,
        {"create_with_all_params": AUDIO},
    ),
    Suite(
        "openai", "tests/api_resources/test_completions.py", "create", 30, {"create_with_all_params": BIAS}
    ),
    Suite("openai", "tests/api_resources/test_models.py", "list", 15),
    Suite(
        "openai",
        "tests/api_resources/test_responses.py",
        "create",
        30,
        {"create_with_all_params": BACKGROUND},
        # The tests ask for nothing at all.
        body={"model": NAME, "input": "Say something."},
    ),
    Suite(
        "anthropic",
        "tests/api_resources/test_messages.py",
        "create or count_tokens",
        45,
        {"with_all_params": NO_SCHEMA},
        base="",
    ),
]
