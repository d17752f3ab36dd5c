"""The curl line that `paceline up` prints. Pure."""

import json
from typing import Final

# Long enough for any tokenizer to make four pages of it, so that the answer takes the handoff; without quotes and
# backslashes, so that it survives a shell and stays readable.
PASSAGE: Final = (
    "In a road race the riders of a team often form a paceline. They follow each other closely in a single file, "
    "because the rider at the front pushes the air aside and everyone behind needs about a third less power to hold "
    "the same speed. Nobody can stay in front for long. After a short pull of perhaps half a minute the leader looks "
    "over one shoulder, moves to the side, eases the pedals a little and lets the others roll past. The second rider "
    "now leads without having changed speed at all, and the former leader slips into the shelter at the very end of "
    "the line, where there is time to eat, to drink and to recover before the next turn. A good paceline is calm. "
    "The wheels are a hand apart, the pulls are short and even, and strong riders take longer turns instead of "
    "faster ones, since a sudden acceleration opens gaps that others have to close with great effort. Hands stay "
    "near the brakes, but hardly anyone brakes, because a touch at the front becomes a wave at the back. Riders "
    "point at holes in the road, call out when a car is coming, and never look back for long. When the wind blows "
    "from the side the line changes its shape. Each rider now finds shelter beside the one ahead, slightly to the "
    "lee, and the line fans out across the road until there is no room left. Those who find no place in this fan "
    "must fight the wind alone, and races have been decided in the few minutes in which a strong team formed such a "
    "fan and the others came too late. Ten riders who share the work in this way reach the finish much sooner, and "
    "far less tired, than the strongest of them could have done alone."
)
PROMPT: Final = "Summarise this text in two sentences. " + PASSAGE


def curl(base_url: str, model: str, *, with_key: bool) -> str:
    """One line for a POSIX shell that streams a summary of `PASSAGE` and ends with the usage.

    `with_key` sends `$PACELINE_API_KEY` of the shell it is pasted into.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 150,
        "temperature": 0,
        # The smallest models repeat themselves without it.
        "frequency_penalty": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # An apostrophe cannot occur inside single quotes; JSON may spell it differently, and a model id could hold one.
    data = json.dumps(body).replace("'", r"\u0027")
    key = ' -H "Authorization: Bearer $PACELINE_API_KEY"' if with_key else ""
    return f"curl -N {base_url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{data}'"
