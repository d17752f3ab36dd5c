"""What clients ask, and what the model's script makes of it. Each client has cues of its own: their tools differ."""

import json
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from paceline.engine.scripted import Line
from paceline.gateway.request import MAX_ATTEMPTS

Case: TypeAlias = Literal["text", "tool", "again", "parallel", "reasoning", "length", "error"]
Shell: TypeAlias = Callable[[str], dict[str, Any]]
"""A client's own tool call for a command: name and arguments."""

TEXT = "The bunch rides as one."
AFTER_TOOL = "The attack came back as forty-two."
AGAIN = "And on it rolls."
AFTER_PARALLEL = "Two calls, two answers."
THOUGHT = "The wind comes from the left."
REASONED = "They form an echelon."
BROKEN = "The road goes up, and up again."
OTHERWISE = "There is nothing to say."

# Only a shell makes these words of what the model asks for.
ATTACK = "attack-42"
DUO, TRIO = "duo-42", "trio-42"
CROSSED = "crossed-the-line"
"""The file that a call makes which the limit cuts short."""


def cue(client: str, case: Case) -> str:
    return f"ride-{client}-{case}"


def prompt(client: str, case: Case) -> str:
    return f"Please do {cue(client, case)} now."


def lines_for(client: str, shell: Shell | None) -> list[Line]:
    """The script for one client; without a `shell` it has no tools."""
    lines = [
        Line(cue(client, "text"), TEXT),
        Line(cue(client, "again"), AGAIN),
        Line(cue(client, "reasoning"), f"<think>\n{THOUGHT}\n</think>\n\n{REASONED}"),
        Line(cue(client, "error"), BROKEN, failures=MAX_ATTEMPTS),
    ]
    if shell is not None:
        far = "far " * 200
        lines += [
            Line(cue(client, "tool"), _calls(shell("echo attack-$((40+2))"))),
            Line(cue(client, "parallel"), _calls(shell("echo duo-$((40+2))"), shell("echo trio-$((40+2))"))),
            Line(cue(client, "length"), _calls(shell(f"touch {CROSSED} && echo {far}"))),
        ]
    return lines


RESULTS = [
    Line(ATTACK, AFTER_TOOL),
    Line(DUO, AFTER_PARALLEL),
    Line(TRIO, AFTER_PARALLEL),
    # What OpenCode and Claude Code say of a call that was cut short.
    Line("arguments provided to the tool are invalid", AGAIN),
    Line("could not be parsed as JSON", AGAIN),
]
"""What follows the results of tools, whoever ran them."""


def _calls(*calls: dict[str, Any]) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
