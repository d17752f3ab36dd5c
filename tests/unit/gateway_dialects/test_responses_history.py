"""Items of a conversation become the messages that templates take."""

import json
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.ask import Conversation
from paceline.gateway.dialects.responses import RESPONSES


def messages(items: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    body = json.dumps({"model": "m", "input": items, **fields}).encode()
    (prompt,) = RESPONSES.parse(body, vocab=1).ask.prompts
    assert isinstance(prompt, Conversation)
    return prompt.messages


def say(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **fields}


def call(call_id: str, name: str, arguments: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **fields}


def output(call_id: str, text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def called(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_turn_of_codex() -> None:
    items = [
        say("developer", [{"type": "input_text", "text": "You are Codex."}]),
        say("developer", [{"type": "input_text", "text": "<rules>"}]),
        say("user", [{"type": "input_text", "text": "Run"}, {"type": "input_text", "text": "echo."}]),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "I run it twice."}],
            "encrypted_content": "gAAA",
        },
        say("assistant", [{"type": "output_text", "text": "Running."}], phase="commentary", id="msg_1"),
        call("c1", "exec_command", '{"cmd":"echo 1"}', id="fc_1", status="completed"),
        call("c2", "spawn_agent", '{"cmd":', namespace="multi_agent_v1"),
        output("c1", "1"),
        output("c2", [{"type": "input_text", "text": "cut"}, {"type": "input_text", "text": "short"}]),
        say("assistant", [{"type": "output_text", "text": "Done.", "annotations": []}]),
        say("user", "Thanks."),
    ]
    assert messages(items, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief.\n\nYou are Codex.\n\n<rules>"},
        {"role": "user", "content": "Run\necho."},
        {
            "role": "assistant",
            "content": "Running.",
            "reasoning_content": "I run it twice.",
            "tool_calls": [
                called("c1", "exec_command", {"cmd": "echo 1"}),
                called("c2", "multi_agent_v1__spawn_agent", '{"cmd":'),
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "exec_command", "content": "1"},
        {
            "role": "tool",
            "tool_call_id": "c2",
            "name": "multi_agent_v1__spawn_agent",
            "content": "cut\nshort",
        },
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ]


def test_messages_may_leave_out_their_type() -> None:
    assert messages([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]


def test_a_system_message_in_mid_conversation_stays_there() -> None:
    items = [say("user", "a"), say("developer", "b"), say("system", "c")]
    assert [(m["role"], m["content"]) for m in messages(items)] == [
        ("user", "a"),
        ("system", "b"),
        ("system", "c"),
    ]


def test_an_answer_in_any_order_is_one_message() -> None:
    items = [
        say("user", "?"),
        call("c", "f", ""),
        say("assistant", "a"),
        say("assistant", "b"),
        output("c", "x"),
    ]
    assert messages(items)[1] == {
        "role": "assistant",
        "content": "a\n\nb",
        "tool_calls": [called("c", "f", {})],
    }


def test_thoughts_come_with_what_they_led_to_and_a_summary_stands_in() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
    items = [
        say("user", "?"),
        thought,
        call("c", "f", "{}"),
        output("c", "x"),
        thought,
        say("user", "!"),
        thought,
    ]
    assert messages(items) == [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "short",
            "tool_calls": [called("c", "f", {})],
        },
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": "x"},
        {"role": "user", "content": "!"},
    ]


def test_encrypted_thoughts_are_nothing() -> None:
    items = [
        say("user", "?"),
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        say("assistant", "a"),
    ]
    assert messages(items)[1] == {"role": "assistant", "content": "a"}


def test_custom_calls_are_calls_with_one_argument() -> None:
    items = [
        say("user", "?"),
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"\n'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
    ]
    assert messages(items)[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [called("c", "patch", {"input": 'a "b"\n'})]},
        {"role": "tool", "tool_call_id": "c", "name": "patch", "content": "ok"},
    ]


def test_a_refusal_is_what_the_assistant_said() -> None:
    assert messages([say("assistant", [{"type": "refusal", "refusal": "No."}])]) == [
        {"role": "assistant", "content": "No."}
    ]


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({}, "input[1].type"),
        ({"type": "computer_call", "id": "x"}, "input[1].type"),
        ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": ""}]}, "input[1].type"),
        ({"type": 1}, "input[1].type"),
        (7, "input[1]"),
        ({"role": "robot", "content": ""}, "input[1].role"),
        ({"role": "user"}, "input[1].content"),
        ({"role": "user", "content": None}, "input[1].content"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "input[1].content[0].type",
        ),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}, "input[1].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text"),
        ({"role": "user", "content": [{"type": "input_text", "text": 1}]}, "input[1].content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "input[1].content[0].type"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "input[1].content[0].refusal"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[1].arguments"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "input[1].arguments"),
        ({"type": "function_call_output", "output": ""}, "input[1].call_id"),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]},
            "input[1].output[0].type",
        ),
        ({"type": "function_call_output", "call_id": "c", "output": "of no call"}, "input"),
        ({"type": "reasoning", "content": [{"type": "x"}]}, "input[1].content[0].type"),
        ({"type": "reasoning", "summary": [{"type": "summary_text"}]}, "input[1].summary[0].text"),
    ],
)
def test_an_item_that_cannot_be_shown_is_named(item: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as e:
        messages([say("user", "?"), item])
    assert e.value.param == path


def test_an_unknown_type_is_named_in_the_message() -> None:
    with pytest.raises(InvalidRequest, match="'computer_call'"):
        messages([{"type": "computer_call"}])
    with pytest.raises(InvalidRequest, match="'input_image'"):
        messages([say("user", [{"type": "input_image"}])])
