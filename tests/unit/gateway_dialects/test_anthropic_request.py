"""What the bodies of Anthropic's Messages ask for, and where exactly one that cannot be honoured is wrong."""

import json
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.gateway.ask import NO_LIMIT, Ask, Conversation, JsonSchema, Named, Tool, ToolUse
from paceline.gateway.dialects.anthropic import MESSAGES
from paceline.gateway.dialects.anthropic_request import parse_count

USER = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}
CALLED = {"role": "assistant", "content": [CALL]}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
READ = {"name": "read", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


def asked(**fields: Any) -> Ask:
    body = {"model": "m", "max_tokens": 8, "messages": [USER], **fields}
    return MESSAGES.parse(json.dumps(body).encode(), vocab=10).ask


def rejected(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        asked(**fields)
    return caught.value


def prompt(ask: Ask) -> Conversation:
    (only,) = ask.prompts
    assert isinstance(only, Conversation)
    return only


def conversation(*turns: dict[str, Any], system: Any = None) -> list[dict[str, Any]]:
    return prompt(asked(messages=turns, system=system)).messages


def result(content: Any = "text", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_the_least_that_can_be_asked_for() -> None:
    ask = asked()
    assert ask == Ask(
        model="m",
        prompts=(Conversation([USER], {"enable_thinking": False}),),
        sampling=Sampling(max_tokens=8, seed=ask.sampling.seed),
    )
    assert ask.sampling.seed != asked().sampling.seed


def test_all_that_can_be_asked_for() -> None:
    ask = asked(
        max_tokens=2**40,
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        stop_sequences=["a", "bc"],
        stream=True,
        metadata={"user_id": "u"},
        tools=[READ | {"description": "reads", "strict": True}],
        tool_choice={"type": "tool", "name": "read", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "max", "format": {"type": "json_schema", "schema": {"type": "array"}}},
    )
    assert ask == Ask(
        model="m",
        prompts=(Conversation([USER], {"enable_thinking": True, "reasoning_effort": "high"}),),
        sampling=Sampling(max_tokens=NO_LIMIT, temperature=0.5, top_p=0.25, top_k=7, seed=ask.sampling.seed),
        stops=("a", "bc"),
        tools=ToolUse((Tool("read", "reads", SCHEMA, strict=True),), Named("read"), parallel=False),
        shape=JsonSchema({"type": "array"}),
        stream=True,
        cache_key="u",
    )


def test_every_field_of_the_sdk_is_accepted() -> None:
    ask = asked(
        cache_control={"type": "ephemeral", "ttl": "5m"},
        container="container",
        diagnostics={"previous_message_id": "msg_1"},
        inference_geo="inference_geo",
        metadata={"user_id": "13803d75-b4b5-4c3e-b2a2-6f21399b021b"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"foo": "bar"}}},
        output_format={"type": "json_schema", "schema": {"foo": "bar"}},
        service_tier="auto",
        speed="standard",
        stop_sequences=["string"],
        stream=False,
        system=[
            text("x") | {"cache_control": {"type": "ephemeral"}, "citations": [{"type": "char_location"}]}
        ],
        temperature=1,
        thinking={"type": "adaptive", "display": "summarized"},
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        tools=[
            READ
            | {
                "allowed_callers": ["direct"],
                "cache_control": {"type": "ephemeral"},
                "defer_loading": True,
                "description": "Get the current weather",
                "eager_input_streaming": True,
                "input_examples": [{"foo": "bar"}],
                "strict": True,
                "type": "custom",
            }
        ],
        top_k=5,
        top_p=0.7,
        user_profile_id="user_profile_id",
        workspace_id="workspace_id",
        # Of the beta API.
        betas=["files-api-2025-04-14"],
        billing_policy={},
        compaction={},
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        fallback_credit_token="x",
        fallbacks=[],
        mcp_servers=[],
        thread={},
    )
    assert prompt(ask).messages == [{"role": "system", "content": "x"}, USER]


def test_null_is_the_same_as_absent() -> None:
    optional = (
        "system tools tool_choice thinking output_config output_format mcp_servers stop_sequences temperature top_p "
        "top_k metadata stream"
    )
    ask = asked(**dict.fromkeys(optional.split()))
    assert prompt(ask) == Conversation([USER], {"enable_thinking": False})
    assert (ask.tools, ask.shape, ask.stops, ask.stream, ask.cache_key) == (None, None, (), False, None)


def test_what_a_session_of_an_agent_becomes() -> None:
    messages = conversation(
        {"role": "user", "content": [text("one"), text("two")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm, ", "signature": "s"},
                {"type": "redacted_thinking", "data": "xxxx"},
                {"type": "thinking", "thinking": "yes", "signature": "s"},
                text("I "),
                text("read"),
                CALL,
                CALL | {"id": "toolu_2", "name": "list", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                text("before"),
                {"type": "tool_result", "tool_use_id": "toolu_2"},
                result([text("a"), text("b")], cache_control={"type": "ephemeral"}),
                text("after"),
            ],
        },
        {"role": "system", "content": "remember"},
        {"role": "user", "content": "three"},
        system="be brief",
    )
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo"},
        {
            "role": "assistant",
            "content": "I read",
            "reasoning_content": "hm, yes",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "read", "arguments": {"path": "a"}},
                },
                {"id": "toolu_2", "type": "function", "function": {"name": "list", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_2", "name": "list", "content": ""},
        {"role": "tool", "tool_call_id": "toolu_1", "name": "read", "content": "a\nb"},
        {"role": "user", "content": "before\nafter"},
        {"role": "system", "content": "remember"},
        {"role": "user", "content": "three"},
    ]


def test_turns_of_one_role_stay_apart() -> None:
    assert conversation(USER, USER) == [USER, USER]


def test_empty_thinking_is_none() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": "s"}
    turns = conversation(USER, {"role": "assistant", "content": [thinking, text("x")]}, USER)
    assert turns[1] == {"role": "assistant", "content": "x"}


def test_results_alone_make_no_turn_of_the_user() -> None:
    assert [m["role"] for m in conversation(USER, CALLED, {"role": "user", "content": [result()]})] == [
        "user",
        "assistant",
        "tool",
    ]


def test_a_failed_call_is_seen_to_have_failed() -> None:
    turns = conversation(USER, CALLED, {"role": "user", "content": [result("no such file", is_error=True)]})
    assert turns[2]["content"] == "Error: no such file"


@pytest.mark.parametrize(
    "system",
    [
        [text("x-anthropic-billing-header: cc_version=2; cch=0a1b2;"), text("be brief"), text("be kind")],
        "x-anthropic-billing-header: cc_version=2; cch=0a1b2;\nbe brief\nbe kind",
    ],
)
def test_the_billing_header_is_not_part_of_the_prompt(system: Any) -> None:
    assert conversation(USER, system=system) == [{"role": "system", "content": "be brief\nbe kind"}, USER]


@pytest.mark.parametrize("system", ["", [], [text("")], [text("x-anthropic-billing-header: a")]])
def test_an_empty_system_prompt_is_none(system: Any) -> None:
    assert conversation(USER, system=system) == [USER]


@pytest.mark.parametrize(
    ("thinking", "enabled"),
    [("enabled", True), ("adaptive", True), ("between_tools", True), ("disabled", False)],
)
def test_thinking(thinking: str, enabled: bool) -> None:
    ask = asked(thinking={"type": thinking, "budget_tokens": 5})
    assert prompt(ask).options == {"enable_thinking": enabled}


@pytest.mark.parametrize(
    ("user_id", "key"),
    [
        (json.dumps({"device_id": "d", "session_id": "s-1"}), "s-1"),
        ("user_ab_session_cd", "user_ab_session_cd"),
        ('{"session_id": 3}', '{"session_id": 3}'),
        ("[" * 5000, "[" * 5000),
        ("", ""),
        (None, None),
    ],
)
def test_the_session_is_that_of_the_user_id(user_id: str | None, key: str | None) -> None:
    assert asked(metadata={"user_id": user_id}).cache_key == key


def test_tools_that_only_anthropic_knows_are_left_out() -> None:
    bash = {"type": "bash_20250124", "name": "bash"}
    assert asked(tools=[SEARCH, READ, bash]).tools == ToolUse((Tool("read", None, SCHEMA),))
    assert asked(tools=[SEARCH], tool_choice={"type": "auto"}).tools is None
    assert asked(tools=[SEARCH | {"input_schema": {}}]).tools == ToolUse((Tool("web_search", None, {}),))


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [("auto", "auto"), ("any", "required"), ("none", "none")],
)
def test_choices_among_tools(choice: str, chosen: str) -> None:
    tools = asked(tools=[READ], tool_choice={"type": choice}).tools
    assert tools is not None
    assert (tools.choice, tools.parallel) == (chosen, True)


def test_a_schema_for_the_answer_may_be_given_the_old_way() -> None:
    old = {"type": "json_schema", "schema": {"type": "null"}}
    assert asked(output_format=old).shape == JsonSchema({"type": "null"})


def test_next_to_greedy_is_greedy() -> None:
    assert asked(temperature=1e-9).sampling.temperature == 0.0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 1}, "model"),
        ({"model": ""}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "user", "content": None}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [CALL]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "n"}]}]},
            "messages[0].content[0].input",
        ),
        (
            {"messages": [{"role": "assistant", "content": [CALL | {"input": "x"}]}]},
            "messages[0].content[0].input",
        ),
        (
            {"messages": [{"role": "assistant", "content": [CALL | {"input": {"x": "x" * 600_000}}]}]},
            "messages[0].content[0].input",
        ),
        ({"tools": [{"name": "x", "input_schema": []}]}, "tools[0].input_schema"),
        ({"output_format": {"type": "json_schema", "schema": 1}}, "output_format.schema"),
        (
            {"messages": [USER, {"role": "user", "content": [text("x"), result()]}]},
            "messages[1].content[1].tool_use_id",
        ),
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages[1]"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "x", "type": "custom"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [READ, READ]}, "tools[1].name"),
        ({"tools": [READ], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [READ], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]}, "mcp_servers"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    assert rejected(**fields).param == param


@pytest.mark.parametrize("kind", ["image", "document", "search_result", "server_tool_use"])
def test_blocks_that_no_model_here_can_read_are_named(kind: str) -> None:
    error = rejected(messages=[{"role": "user", "content": [text("x"), {"type": kind, "source": {}}]}])
    assert error.message == f"Content blocks of type {kind!r} are not supported here"
    assert error.param == "messages[0].content[1].type"


def test_so_are_those_within_a_result() -> None:
    error = rejected(messages=[USER, CALLED, {"role": "user", "content": [result([{"type": "image"}])]}])
    assert error.message == "Content blocks of type 'image' are not supported here"
    assert error.param == "messages[2].content[0].content[0].type"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"\\ud800"}', b'{"model":' + b"[" * 100_000])
def test_what_is_no_body_at_all(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        MESSAGES.parse(body, vocab=10)


def test_counting_takes_the_prompt_of_the_same_request_without_its_limit() -> None:
    fields = {
        "model": "m",
        "messages": [USER],
        "system": "s",
        "tools": [READ],
        "thinking": {"type": "adaptive"},
    }
    counted = parse_count(json.dumps(fields).encode())
    whole = asked(**fields)
    assert (counted.prompts, counted.tools, counted.model) == (whole.prompts, whole.tools, "m")


def test_counting_names_what_is_wrong_as_well() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_count(b'{"model":"m","messages":[{"role":"user","content":[{"type":"image"}]}]}')
    assert caught.value.param == "messages[0].content[0].type"
