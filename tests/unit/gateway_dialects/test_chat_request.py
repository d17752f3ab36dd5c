"""The request body: every rejection names what is wrong, and what is accepted means what OpenAI's clients expect."""

import json
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.gateway.ask import NO_LIMIT, Ask, Conversation, JsonSchema, Lark, Named, Regex, Tool, ToolUse
from paceline.gateway.dialects.chat import CHAT, ChatRequest

VOCAB = 1000
USER = {"role": "user", "content": "hi"}
TEXT = {"type": "text", "text": "x"}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def call(**fields: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, **fields}


def parsed(**fields: Any) -> Ask:
    return CHAT.parse(json.dumps({"model": "m", "messages": [USER], **fields}).encode(), vocab=VOCAB).ask


def rejected(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        CHAT.parse(body, vocab=VOCAB)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b'{"model":"\xff\xfe"}',
        b'{"model":"\\ud800"}',
        b'{"model":"m","messages":[]} x',
        b'{"n":NaN}',
    ],
)
def test_what_is_not_json_is_rejected(body: bytes) -> None:
    assert rejected(body).message.startswith("The body is not valid JSON")


def test_endless_nesting_is_rejected() -> None:
    deep = b'{"model":"m","messages":[],"x":' + b"[" * 20_000
    assert rejected(deep).message == "The body is nested too deeply"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 1}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": 3}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{}]}]}, "messages[1].tool_calls[0].id"),
        ({"messages": [{**USER, "tool_calls": [call()]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [call(type="custom")]}]},
            "messages[0].tool_calls[0].type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": 1}]}]}, "messages[0].content[0].type"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0.009}, "repetition_penalty"),
        ({"repetition_penalty": 101}, "repetition_penalty"),
        ({"n": 129}, "n"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"seed": "x"}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "a"}}, "logit_bias"),
        ({"logit_bias": {"1000": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["x" * 4097]}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [1, 1000]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"messages": [USER] * 10_001}, "messages"),
        ({"messages": [USER, {"role": "user", "content": [TEXT] * 10_001}]}, "messages[1].content"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name"),
        ({"tools": [tool("f", parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", parameters={"x": "y" * (256 << 10)})]}, "tools[0].function.parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        (
            {"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"functions": [{}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "regex"}}, "response_format.pattern"),
        ({"response_format": {"type": "lark"}}, "response_format.grammar"),
        ({"response_format": "text"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"tools": "x"}, "tools"),
        ({"logprobs": 2}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"draft": 1}, "draft"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    body = json.dumps({"model": "m", "messages": [USER], **fields}).encode()
    assert rejected(body).param == param


def test_a_missing_field_is_named() -> None:
    assert rejected(b'{"messages":[]}').param == "model"
    assert rejected(b'{"model":"m"}').param == "messages"


def test_the_message_says_what_is_allowed() -> None:
    body = json.dumps({"model": "m", "messages": [USER], "top_p": 0}).encode()
    assert rejected(body).message == "top_p must be greater than 0 and at most 1, got 0.0"


def test_bounds_are_inclusive_and_null_means_absent() -> None:
    nulls = dict.fromkeys({*ChatRequest.__struct_fields__} - {"model", "messages"})
    parsed(**nulls)
    parsed(temperature=2, top_p=1, min_p=1, presence_penalty=-2, frequency_penalty=2, n=128, seed=-(2**63))
    parsed(temperature=0, top_k=0, min_p=0, logit_bias={"999": -100}, stop=["a", "b", "c", "d"], max_tokens=1)


def test_lists_may_be_as_long_as_their_bound() -> None:
    parsed(stop_token_ids=[1] * 1024, messages=[{"role": "user", "content": [TEXT] * 10_000}] * 2)
    parsed(messages=[USER] * 10_000, repetition_penalty=0.01)
    biases = {str(i): 1 for i in range(4096)}
    body = {"model": "m", "messages": [USER], "logit_bias": biases}
    CHAT.parse(json.dumps(body).encode(), vocab=5000)
    biases["4096"] = 1
    with pytest.raises(InvalidRequest, match="length <= 4096") as caught:
        CHAT.parse(json.dumps(body).encode(), vocab=5000)
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(("asked", "used"), [(0, 0.0), (1e-300, 0.0), (9.9e-6, 0.0), (1e-5, 1e-5)])
def test_a_temperature_that_logits_cannot_be_divided_by_is_greedy(asked: float, used: float) -> None:
    assert parsed(temperature=asked).sampling.temperature == used


def test_harmless_forms_of_unsupported_fields_are_accepted() -> None:
    parsed(tools=[], tool_choice="auto", functions=[], function_call="none", response_format={"type": "text"})
    parsed(logprobs=False, modalities=["text"], audio={"voice": "x", "format": "wav"})
    spaced = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[ ],"modalities":\n[ "text" ]}'
    CHAT.parse(spaced, vocab=VOCAB)
    parsed(user="u", metadata={"a": "b"}, store=False, verbosity="low", prediction={"type": "content"})


def test_tools_and_how_they_may_be_used() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [tool("f", description="does", parameters=schema, strict=True), tool("g")]
    f = Tool("f", "does", schema, strict=True)
    g = Tool("g", None, {"type": "object", "properties": {}})
    named = {"type": "function", "function": {"name": "g"}}
    assert parsed(tools=tools).tools == ToolUse((f, g), "auto", parallel=True)
    assert parsed(tools=tools, tool_choice="none").tools == ToolUse((f, g), "none")
    assert parsed(tools=tools, tool_choice="required").tools == ToolUse((f, g), "required")
    assert parsed(tools=tools, tool_choice=named, parallel_tool_calls=False).tools == ToolUse(
        (f, g), Named("g"), parallel=False
    )
    assert parsed(tool_choice="none").tools is None


@pytest.mark.parametrize(
    ("response_format", "shape"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonSchema({"type": "object"})),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1]}, "strict": True}},
            JsonSchema({"enum": [1]}),
        ),
        ({"type": "regex", "pattern": "a+"}, Regex("a+")),
        ({"type": "lark", "grammar": "start: /a/"}, Lark("start: /a/")),
    ],
)
def test_the_shape_of_an_answer(response_format: dict[str, Any], shape: object) -> None:
    assert parsed(response_format=response_format).shape == shape


def test_log_probabilities_come_with_so_many_alternatives() -> None:
    asks = [parsed(), parsed(logprobs=True), parsed(logprobs=True, top_logprobs=20)]
    assert [ask.logprobs for ask in asks] == [None, 0, 20]


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("minimal", False), ("low", True)])
def test_effort_and_other_options_reach_the_template(effort: str, thinks: bool) -> None:
    (prompt,) = parsed(reasoning_effort=effort, chat_template_kwargs={"x": 1}).prompts
    assert isinstance(prompt, Conversation)
    assert prompt.options == {"x": 1, "reasoning_effort": effort, "enable_thinking": thinks}


def test_flex_is_of_low_priority() -> None:
    assert [parsed(service_tier=t).low_priority for t in (None, "auto", "default", "flex")] == [
        False,
        False,
        False,
        True,
    ]


def test_the_conversation_is_text_with_roles_that_templates_know() -> None:
    (prompt,) = parsed(
        messages=[
            {"role": "developer", "content": "be brief", "name": "x"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": ""},
        ]
    ).prompts
    assert prompt == Conversation(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": "no"},
            {"role": "user", "content": ""},
        ]
    )


def test_calls_of_earlier_answers_have_objects_for_arguments() -> None:
    broken = {"name": "f", "arguments": "{"}
    (prompt,) = parsed(
        messages=[
            {
                "role": "assistant",
                "content": "",
                "reasoning": "hm",
                "tool_calls": [
                    call(),
                    call(function=broken),
                    call(function={"name": "f", "arguments": {"b": [2]}}),
                    call(function={"name": "f", "arguments": ""}),
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
        ]
    ).prompts
    functions = [{"a": 1}, "{", {"b": [2]}, {}]
    assert prompt == Conversation(
        [
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
                    for arguments in functions
                ],
            },
            {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "f"},
        ]
    )


def test_sampling_carries_every_field() -> None:
    ask = parsed(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={"7": -3},
        seed=-1,
        stop_token_ids=[8, 9],
        ignore_eos=True,
    )
    assert ask.sampling == Sampling(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={7: -3.0},
        seed=2**63 - 1,
        stop_token_ids=(8, 9),
        ignore_eos=True,
    )


def test_a_missing_seed_is_drawn_and_other_defaults_are_openais() -> None:
    first, second = parsed().sampling, parsed().sampling
    assert first.seed != second.seed
    assert first == Sampling(max_tokens=NO_LIMIT, temperature=1.0, top_p=1.0, seed=first.seed)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, NO_LIMIT),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 8}, 8),
    ],
)
def test_the_newer_name_of_the_limit_wins(fields: dict[str, int], expected: int) -> None:
    assert parsed(**fields).sampling.max_tokens == expected


def test_stop_may_be_a_string_a_list_or_absent() -> None:
    assert [parsed(stop=s).stops for s in ("a", ["a", "b"], [], None)] == [("a",), ("a", "b"), (), ()]
