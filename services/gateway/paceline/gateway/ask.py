"""What a client wants, in no API's words: dialects make an `Ask`, and nothing behind them knows which API it was."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from paceline.contracts.messages import Sampling

NO_LIMIT = 2**31 - 1
"""`Sampling.max_tokens` of a client that named none: as many as the context has room for."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON Schema, to which `strict` calls are held."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """The one tool that has to be called."""

    name: str


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | Named


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools as the prompt shows them, with "none" as well: a prompt without them would miss the cached prefix."""

    tools: tuple[Tool, ...]
    choice: ToolChoice = "auto"
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The text is JSON that this schema (draft 2020-12) accepts."""

    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole text matches; no anchors are needed."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Lark:
    """The text is a sentence of this grammar, as llguidance writes it."""

    grammar: str


Shape: TypeAlias = JsonSchema | Regex | Lark
"""What the visible text of an answer must look like."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` as Hugging Face's chat templates take them: role, content (a string), and for the assistant
    `reasoning_content` and `tool_calls` [{id, type: "function", function: {name, arguments}}], whose arguments are a
    dict wherever they were JSON; for the role tool `tool_call_id` and `name`. `options` are further variables of the
    template, such as enable_thinking and reasoning_effort."""

    messages: list[dict[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)


Prompt: TypeAlias = Conversation | str | tuple[int, ...]
"""A conversation for the model's template, text as it is, or token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. Each of `prompts` gets `choices` answers, numbered prompt by prompt.

    `sampling.seed` is that of the first answer, the others count on. `logprobs` is the number of alternatives that a
    token's log probability comes with, None for no log probabilities. `echo` puts the prompt before the answer.
    `low_priority` work waits while other work does.
    """

    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    choices: int = 1
    stops: tuple[str, ...] = ()
    tools: ToolUse | None = None
    shape: Shape | None = None
    logprobs: int | None = None
    echo: bool = False
    stream: bool = False
    draft: bool = True
    cache_key: str | None = None
    low_priority: bool = False
    refuse_if_busy: bool = False
