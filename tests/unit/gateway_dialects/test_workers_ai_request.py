"""What the bodies of Workers AI's run ask for, and where exactly one that cannot be honoured is wrong."""

import json
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.gateway.ask import Ask, Conversation, JsonSchema, Named, Tool, ToolUse
from paceline.gateway.dialects.workers_ai import Run

MODEL = "@cf/meta/llama-3.1-8b-instruct"
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
FLAT = {"name": "read", "description": "reads", "parameters": SCHEMA}


def asked(**fields: Any) -> Ask:
    return Run(MODEL).parse(json.dumps(fields).encode(), vocab=10).ask


def messages(*turns: dict[str, Any]) -> list[dict[str, Any]]:
    (prompt,) = asked(messages=turns).prompts
    assert isinstance(prompt, Conversation)
    return prompt.messages


def call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_prompt_is_what_a_user_says() -> None:
    ask = asked(prompt="hi")
    assert ask == Ask(
        model=MODEL,
        prompts=(Conversation([USER]),),
        sampling=Sampling(max_tokens=256, seed=ask.sampling.seed),
    )
    assert ask.sampling.seed != asked(prompt="hi").sampling.seed


def test_a_raw_prompt_is_taken_as_it_is() -> None:
    assert asked(prompt="<|user|>hi", raw=True).prompts == ("<|user|>hi",)


def test_all_that_can_be_asked_for() -> None:
    ask = asked(
        messages=[{"role": "system", "content": "s"}, USER],
        stream=True,
        max_tokens=9,
        temperature=4.5,
        top_p=0.5,
        top_k=50,
        seed=-1,
        repetition_penalty=1.5,
        frequency_penalty=0.25,
        presence_penalty=-0.25,
        tools=[FLAT, {"type": "function", "function": FLAT | {"name": "write"}}],
        tool_choice={"type": "function", "function": {"name": "write"}},
        response_format={"type": "json_schema", "json_schema": SCHEMA},
        options={"rejectIfBusy": True},
        lora="",
        functions=[],
        image=None,
    )
    assert ask == Ask(
        model=MODEL,
        prompts=(Conversation([{"role": "system", "content": "s"}, USER]),),
        sampling=Sampling(
            max_tokens=9,
            temperature=4.5,
            top_p=0.5,
            top_k=50,
            repetition_penalty=1.5,
            frequency_penalty=0.25,
            presence_penalty=-0.25,
            seed=2**63 - 1,
        ),
        tools=ToolUse((Tool("read", "reads", SCHEMA), Tool("write", "reads", SCHEMA)), Named("write")),
        shape=JsonSchema(SCHEMA),
        stream=True,
        refuse_if_busy=True,
    )


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonSchema({"type": "object"})),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
    ],
)
def test_shapes(form: dict[str, Any], shape: JsonSchema | None) -> None:
    assert asked(prompt="x", response_format=form).shape == shape


def test_a_loop_of_tools_in_openais_form() -> None:
    turns = messages(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call("c1", "read", '{"path": "a"}')]},
        {"role": "tool", "tool_call_id": "c1", "content": "text"},
    )
    assert turns[1]["tool_calls"] == [call("c1", "read", {"path": "a"})]
    assert turns[2] == {"role": "tool", "tool_call_id": "c1", "name": "read", "content": "text"}


def test_flat_calls_get_ids_and_their_answers_find_them() -> None:
    turns = messages(
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"name": "read", "arguments": {"path": "a"}},
                {"name": "list", "arguments": {}},
                {"name": "read", "arguments": {"path": "b"}},
            ],
        },
        {"role": "tool", "name": "list", "content": "l"},
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": "b"},
        {"role": "tool", "name": "read", "content": "of no call"},
    )
    assert [c["id"] for c in turns[1]["tool_calls"]] == ["call_1_0", "call_1_1", "call_1_2"]
    assert [(t["tool_call_id"], t["name"], t["content"]) for t in turns[2:]] == [
        ("call_1_1", "list", "l"),
        ("call_1_0", "read", "a"),
        ("call_1_2", "read", "b"),
        ("call_5", "read", "of no call"),
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "messages": [USER]}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [USER], "raw": True}, "raw"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"arguments": {}}]}]},
            "messages[1].tool_calls[0].name",
        ),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "temperature": 5.1}, "temperature"),
        ({"prompt": "x", "top_p": 0}, "top_p"),
        ({"prompt": "x", "top_k": -1}, "top_k"),
        ({"prompt": "x", "seed": 2**63}, "seed"),
        ({"prompt": "x", "repetition_penalty": 0}, "repetition_penalty"),
        ({"prompt": "x", "frequency_penalty": 2.1}, "frequency_penalty"),
        ({"prompt": "x", "presence_penalty": -2.1}, "presence_penalty"),
        ({"prompt": "x", "tools": [{"parameters": {}}]}, "tools[0].name"),
        ({"prompt": "x", "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"prompt": "x", "tools": [{"type": "browser"}]}, "tools[0].type"),
        ({"prompt": "x", "tool_choice": "required"}, "tool_choice"),
        ({"prompt": "x", "response_format": {"type": "xml"}}, "response_format.type"),
        ({"prompt": "x", "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"prompt": "x", "options": {"rejectIfBusy": "yes"}}, "options.rejectIfBusy"),
        ({"prompt": "x", "lora": "mine"}, "lora"),
        ({"prompt": "x", "image": [1, 2]}, "image"),
        ({"prompt": "x", "functions": [{"name": "f", "code": "1"}]}, "functions"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked(**fields)
    assert caught.value.param == param
