"""Which of the SDKs' own tests run against a mesh: those that create answers. What is left out says why."""

from dataclasses import dataclass, field

AUDIO = "asks for audio, which no model here can give, and biases a token called foo"
NO_SCHEMA = "gives a schema that is none: a property is the string bar"


@dataclass(frozen=True)
class Suite:
    """`file` of the source distribution of `package`, of which `select` (as pytest's -k) runs but for `left_out`: names
    of tests with the reason. `passes` is how many are left."""

    package: str
    file: str
    select: str
    passes: int
    left_out: dict[str, str] = field(default_factory=dict)
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
        24,
        {"create_with_all_params": AUDIO},
    ),
    Suite("openai", "tests/api_resources/test_completions.py", "create", 32),
    Suite("openai", "tests/api_resources/test_models.py", "list", 12),
    Suite("openai", "tests/api_resources/test_responses.py", "create", 24),
    Suite(
        "anthropic",
        "tests/api_resources/test_messages.py",
        "create or count_tokens",
        39,
        {"with_all_params": NO_SCHEMA},
        base="",
    ),
]
