"""Real chat templates: which family speaks so, and that a call in the history is read back as itself."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paceline.gateway.ask import Tool, ToolUse
from paceline.gateway.formats.deepseek_v3 import DeepSeekV3
from paceline.gateway.formats.detect import detect
from paceline.gateway.formats.family import Family
from paceline.gateway.formats.glm import Glm
from paceline.model.template import ChatTemplate
from tests.unit.gateway_formats.speech import answer

DATA = Path(__file__).parents[4] / "shared/data"

FAMILIES = {
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "Kimi-K2-Instruct": "kimi_k2",
    "Kimi-K2-Thinking": "kimi_k2",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "moonshotai-Kimi-K2": "kimi_k2",
    "openai-gpt-oss-120b": "harmony",
    "tool_chat_template_llama4_pythonic": "pythonic",
}
THINKING = {"GLM-4.6", "GLM-4.7-Flash", "Kimi-K2-Thinking", "Qwen-Qwen3-0.6B"} | {
    "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2",
}

# What a template writes before and after what the model said.
BEFORE = re.compile(
    r"<\|im_start\|>assistant\n?|<\|assistant\|>(</think>)?|<\|im_assistant\|>assistant<\|im_middle\|>|<｜Assistant｜>(</think>)?|"  # noqa: RUF001
    r"<\|start\|>assistant|<\|header_start\|>assistant<\|header_end\|>\n\n|"
    r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n"
)
AFTER = re.compile(r"(<\|im_end\|>\n?|<｜end▁of▁sentence｜>|<\|eot\|>|<\|eot_id\|>)$")  # noqa: RUF001


needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public templates are not here")


def source(name: str) -> str:
    return (DATA / f"templates/{name}.jinja").read_text(encoding="utf-8")


@needs_data
def test_every_template_is_known() -> None:
    found = {path.stem: detect(source(path.stem), ()) for path in (DATA / "templates").glob("*.jinja")}
    assert {name: form.name for name, form in found.items()} == FAMILIES
    assert {n for n, form in found.items() if isinstance(form, Family) and form.thinks} == THINKING
    glm = {name: form.lines for name, form in found.items() if isinstance(form, Glm)}
    assert glm == {"GLM-4.6": True, "GLM-4.7-Flash": False}


def test_other_templates_are_told_by_their_signs() -> None:
    assert detect("{{ messages }}", ()).name == "plain"
    assert detect("{% if tools %}{{ tools }}{% endif %}", ()).name == "hermes"
    v3 = detect("'<｜tool▁calls▁begin｜>' + '```json'", ())  # noqa: RUF001
    assert isinstance(v3, DeepSeekV3)
    assert v3.fenced


def standard(schema: Any) -> Any:
    """A schema whose types are JSON's; the collection has Python's."""
    names = {"dict": "object", "float": "number", "tuple": "array"}
    if isinstance(schema, list):
        return [standard(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    done = {key: standard(value) for key, value in schema.items()}
    if isinstance(named := done.get("type"), str):
        done["type"] = names.get(named, named)
        if done["type"] == "any":
            del done["type"]
    return done


def examples(count: int) -> Iterator[tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]]:
    """Functions, and calls of them."""
    for collection in ("parallel_multiple", "multiple"):
        tools = (DATA / f"tools/BFCL_v4_{collection}.json").read_text(encoding="utf-8").splitlines()
        answers = (
            (DATA / f"tools/possible_answer/BFCL_v4_{collection}.json")
            .read_text(encoding="utf-8")
            .splitlines()
        )
        for line, truth in list(zip(tools, answers, strict=True))[:count]:
            calls = [
                (name, {key: first(values) for key, values in arguments.items() if values[0] != ""})
                for call in json.loads(truth)["ground_truth"]
                for name, arguments in call.items()
            ]
            yield standard(json.loads(line)["function"]), calls


def first(values: list[Any]) -> Any:
    """The first of several right answers, of objects within as well."""
    value = values[0]
    if isinstance(value, dict):
        return {key: first(inner) for key, inner in value.items()}
    return value


@cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate(source(name), special_tokens={"bos_token": ""})


def rendered(name: str, form: Any, functions: Any, messages: list[dict[str, Any]]) -> str:
    tools = [{"type": "function", "function": function} for function in functions]
    return template(name).render(form.history(messages), tools=tools, add_generation_prompt=False)


@needs_data
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_calls_in_the_history_are_read_back_as_themselves(name: str) -> None:
    form = detect(source(name), ())
    assert isinstance(form, Family)
    user = {"role": "user", "content": "Please <do> it."}
    for functions, calls in examples(40):
        if form.name in ("llama3", "harmony"):
            calls = calls[:1]  # what their templates write in one message
        said = {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": f"c{n}", "type": "function", "function": {"name": call, "arguments": arguments}}
                for n, (call, arguments) in enumerate(calls)
            ],
        }
        before = rendered(name, form, functions, [user])
        after = rendered(name, form, functions, [user, said])
        assert after.startswith(before)
        text = AFTER.sub("", BEFORE.sub("", after[len(before) :], count=1))
        tools = ToolUse(tuple(Tool(f["name"], f["description"], f["parameters"]) for f in functions))
        made = answer(form, [text], tools=tools)
        assert [(call.name, json.loads(call.arguments)) for call in made.calls] == calls
        assert made.text == made.reasoning == ""


def conversation(*calls: str) -> list[dict[str, Any]]:
    """A question, these calls in one message, their results in another order, and a last word."""
    made = [{"id": i, "type": "function", "function": {"name": "f", "arguments": {"x": i}}} for i in calls]
    results = [
        {"role": "tool", "tool_call_id": i, "name": "f", "content": f"result {i}"} for i in reversed(calls)
    ]
    return [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "I will.", "reasoning_content": "Hm.", "tool_calls": made},
        *results,
        {"role": "assistant", "content": "done", "tool_calls": []},
    ]


FUNCTIONS = [
    {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}},
    }
]


@needs_data
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_conversations_with_several_calls_can_be_told(name: str) -> None:
    text = rendered(name, detect(source(name), ()), FUNCTIONS, conversation("a", "b"))
    order = [text.index(part) for part in ("result a", "result b", "done")]
    assert order[2] > max(order[:2])


def test_one_call_in_each_message_where_a_template_has_room_for_one() -> None:
    told = detect("<|python_tag|>", ()).history(conversation("a", "b"))
    assert [(m["role"], m.get("content"), [c["id"] for c in m.get("tool_calls", ())]) for m in told] == [
        ("user", "q", []),
        ("assistant", "I will.", ["a"]),
        ("tool", "result a", []),
        ("assistant", "", ["b"]),
        ("tool", "result b", []),
        ("assistant", "done", []),
    ]


def test_harmony_tells_what_was_thought_and_said_before_a_call() -> None:
    told = detect("<|channel|>", ()).history(conversation("a"))
    assert told[1]["thinking"] == "Hm.\n\nI will."
    assert told[1]["content"] == ""
    assert "reasoning_content" not in told[1]


def test_kimi_counts_calls_through_the_conversation() -> None:
    told = detect("<|tool_calls_section_begin|>", ()).history(conversation("a", "b") + conversation("c"))
    ids = [call["id"] for message in told for call in message.get("tool_calls", ())]
    assert ids == ["functions.f:0", "functions.f:1", "functions.f:2"]
    results = [message["tool_call_id"] for message in told if message["role"] == "tool"]
    assert results == ["functions.f:1", "functions.f:0", "functions.f:2"]
