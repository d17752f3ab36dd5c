"""What a Responses request may say: every field is honoured, ignored on purpose, or refused by its name."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.ask import NO_LIMIT, Ask, Conversation, JsonSchema, Named, Tool, ToolUse
from paceline.gateway.dialects.responses import RESPONSES, SpokenResponses

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
TIME = {"type": "function", "name": "time"}
SPAWN = {
    "type": "namespace",
    "name": "agents",
    "description": "Others.",
    "tools": [{"type": "function", "name": "spawn", "strict": False}, {"type": "custom", "name": "patch"}],
}
NOTHING = {"type": "object", "properties": {}}


def parse(**fields: Any) -> SpokenResponses:
    body = {"model": "m", "input": "hi", **fields}
    return RESPONSES.parse(json.dumps(body).encode(), vocab=100)


def ask(**fields: Any) -> Ask:
    return parse(**fields).ask


def refused(**fields: Any) -> str | None:
    """The path that the error names."""
    with pytest.raises(InvalidRequest) as e:
        parse(**fields).ask  # noqa: B018 - it raises
    return e.value.param


def test_a_string_is_what_the_user_says_and_the_rest_has_defaults() -> None:
    asked = ask()
    assert asked.prompts == (Conversation([{"role": "user", "content": "hi"}], {}),)
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (1.0, 1.0, NO_LIMIT)
    assert (asked.model, asked.choices, asked.tools, asked.shape, asked.logprobs) == (
        "m",
        1,
        None,
        None,
        None,
    )
    assert (asked.stream, asked.cache_key, asked.low_priority) == (False, None, False)


def test_a_request_without_a_model_leaves_it_open() -> None:
    assert ask(model=None).model == ""
    assert RESPONSES.parse(b'{"input":"hi"}', vocab=1).ask.model == ""


def test_how_tokens_are_chosen() -> None:
    sampling = ask(
        temperature=0.25, top_p=0.5, max_output_tokens=7, presence_penalty=1, frequency_penalty=-1
    ).sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.25, 0.5, 7)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert ask(temperature=1e-9).sampling.temperature == 0.0
    assert ask().sampling.seed != ask().sampling.seed


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"prompt_cache_key": "k"}, lambda a: a.cache_key == "k"),
        ({"stream": True}, lambda a: a.stream),
        ({"service_tier": "flex"}, lambda a: a.low_priority),
        ({"service_tier": "auto"}, lambda a: not a.low_priority),
        ({"include": ["message.output_text.logprobs"]}, lambda a: a.logprobs == 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, lambda a: a.logprobs == 3),
        ({"top_logprobs": 2}, lambda a: a.logprobs == 2),
        ({"top_logprobs": 0}, lambda a: a.logprobs is None),
        ({"include": ["reasoning.encrypted_content"]}, lambda a: a.logprobs is None),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, lambda a: a.shape is None),
        ({"text": {"format": {"type": "json_object"}}}, lambda a: a.shape == JsonSchema({"type": "object"})),
        (
            {
                "text": {
                    "format": {"type": "json_schema", "name": "n", "schema": {"enum": [1]}, "strict": True}
                }
            },
            lambda a: a.shape == JsonSchema({"enum": [1]}),
        ),
    ],
)
def test_a_field_is_honoured(fields: dict[str, Any], check: Callable[[Ask], bool]) -> None:
    assert check(ask(**fields))


@pytest.mark.parametrize(
    ("reasoning", "options"),
    [
        (None, {}),
        ({"summary": "auto"}, {}),
        ({"effort": None}, {}),
        ({"effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"effort": "minimal"}, {"reasoning_effort": "minimal", "enable_thinking": False}),
        ({"effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"effort": "xhigh", "summary": "detailed"}, {"reasoning_effort": "xhigh", "enable_thinking": True}),
    ],
)
def test_the_effort_is_for_the_template(reasoning: dict[str, Any] | None, options: dict[str, Any]) -> None:
    (prompt,) = ask(reasoning=reasoning).prompts
    assert isinstance(prompt, Conversation)
    assert prompt.options == options


def test_what_changes_no_answer_is_accepted() -> None:
    plain = ask()
    other = ask(
        access_programs={"cyber": "standard"},
        background=False,
        background_options={"completion_window": "soonest"},
        client_metadata={"k": {"v": [1]}},
        context_management=[],
        conversation=None,
        image={"context_compression": "auto"},
        include=["web_search_call.results"],
        max_tool_calls=3,
        metadata={"k": "v"},
        moderation=None,
        parallel_tool_calls=True,
        prompt=None,
        prompt_cache_options={"mode": "implicit", "ttl": "30m"},
        prompt_cache_retention="24h",
        safety_identifier="s",
        service_tier="default",
        store=True,
        stream_options={"include_obfuscation": True},
        truncation="auto",
        user="u",
    )
    assert (other.prompts, other.tools, other.shape) == (plain.prompts, plain.tools, plain.shape)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**30}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_tool_calls": 10**30}, "max_tool_calls"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"verbosity": "huge"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": []}}},
            "text.format.schema",
        ),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 1}, "input"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TIME, TIME]}, "tools[1].name"),
        ({"tools": [SPAWN, {"type": "function", "name": "agents__spawn"}]}, "tools[1].name"),
        ({"tools": [{**TIME, "parameters": 1}]}, "tools[0].parameters"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        ({"tools": [{**SPAWN, "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [TIME]}, "tool_choice.name"),
        ({"tool_choice": {"type": "function"}, "tools": [TIME]}, "tool_choice.name"),
        ({"tool_choice": {"type": "web_search"}, "tools": [TIME]}, "tool_choice.type"),
        (
            {
                "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "x"}]},
                "tools": [TIME],
            },
            "tool_choice.tools[0].name",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}, "tools": [TIME]},
            "tool_choice.tools[0].type",
        ),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required"}, "tools": [TIME]}, "tool_choice"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"input": "\xff"}', b'{"input":' + b"[" * 100_000])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        RESPONSES.parse(body, vocab=1)


def test_functions_are_offered_and_what_others_run_is_ignored_with_a_warning() -> None:
    spoken = parse(tools=[WEATHER, {"type": "web_search", "filters": {"x": 1}}, SPAWN, TIME])
    weather = Tool(
        "weather", "Of a city.", {"type": "object", "properties": {"city": {"type": "string"}}}, True
    )
    spawn = Tool("agents__spawn", None, NOTHING)
    assert spoken.ask.tools == ToolUse((weather, spawn, Tool("time", None, NOTHING)), "auto", True)
    assert spoken.warnings == (
        "tools[1]: tools of type 'web_search' are ignored",
        "tools[2].tools[1]: tools of type 'custom' are ignored",
    )


def test_a_request_with_no_tool_that_can_be_offered_has_none() -> None:
    assert ask(tools=[{"type": "web_search"}], tool_choice="auto").tools is None
    assert ask(tools=[], tool_choice="none").tools is None


@pytest.mark.parametrize(
    ("choice", "chosen", "names"),
    [
        (None, "auto", ["time", "agents__spawn"]),
        ("none", "none", ["time", "agents__spawn"]),
        ("required", "required", ["time", "agents__spawn"]),
        ({"type": "function", "name": "time"}, Named("time"), ["time", "agents__spawn"]),
        (
            {"type": "function", "name": "spawn", "namespace": "agents"},
            Named("agents__spawn"),
            ["time", "agents__spawn"],
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "time"}],
            },
            "required",
            ["time"],
        ),
    ],
)
def test_which_tool_is_to_be_called(choice: Any, chosen: Any, names: list[str]) -> None:
    use = ask(tools=[TIME, SPAWN], tool_choice=choice, parallel_tool_calls=False).tools
    assert use is not None
    assert (use.choice, [tool.name for tool in use.tools], use.parallel) == (chosen, names, False)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "role", "content", "output", "name", "tools", "call_id", "text", "id"]
                ),
                inner | st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]),
                max_size=5,
            )
        ),
        max_leaves=20,
    ),
    st.sampled_from(["input", "tools", "tool_choice", "text", "reasoning"]),
)
def test_whatever_comes_is_asked_or_refused(value: Any, field: str) -> None:
    try:
        asked = ask(**{field: value})
    except InvalidRequest:
        return
    (prompt,) = asked.prompts
    assert isinstance(prompt, Conversation)
    assert prompt.messages
