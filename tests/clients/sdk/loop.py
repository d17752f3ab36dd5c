"""The loop of an agent with one tool, around whatever SDK speaks to the model.

Run as `python -m tests.clients.sdk.<name>`: prints one line of JSON for each answer of the model, and keeps the
conversation in a file, from which the next run goes on.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

TOOL = "shell"
DESCRIPTION = "Run a command in a shell and return what it prints."
PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}
_MOST_ANSWERS = 6


@dataclass
class Call:
    id: str
    name: str
    arguments: str = ""


@dataclass
class Turn:
    """One answer of the model. `cut` when the limit on its length ended it."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    cut: bool = False


@dataclass(frozen=True)
class Options:
    url: str
    model: str
    max_tokens: int
    stream: bool


class Speaker(Protocol):
    """One SDK. `history` is JSON."""

    history: list[Any]

    def user(self, text: str) -> None: ...

    def answer(self) -> Turn:
        """The model's next answer, which is part of the history when this returns."""

    def results(self, results: list[tuple[Call, str]]) -> None: ...


def main(make: Callable[[Options], Speaker]) -> None:
    options, state, prompt = arguments()
    speaker = make(options)
    if state.exists():
        speaker.history = json.loads(state.read_text())
    speaker.user(prompt)
    for _ in range(_MOST_ANSWERS):
        turn = speaker.answer()
        tell(asdict(turn))
        if turn.cut or not turn.calls:
            break
        speaker.results([(call, run_shell(json.loads(call.arguments)["command"])) for call in turn.calls])
    state.write_text(json.dumps(speaker.history))


def arguments() -> tuple[Options, Path, str]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-tokens", type=int, default=1000)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("prompt")
    given = parser.parse_args()
    return Options(given.url, given.model, given.max_tokens, not given.whole), given.state, given.prompt


def tell(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def run_shell(command: str) -> str:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False).stdout
