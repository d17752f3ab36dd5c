"""What each family's parser makes of what its model says, however it is cut."""

# ruff: noqa: RUF001 - the bars of DeepSeek's markers are not those of ASCII

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.gateway.ask import Named, ToolUse
from paceline.gateway.deltas import Answer, CallArguments, CallBegun, Reasoning, Text
from paceline.gateway.formats.machine import Machine
from paceline.gateway.formats.plain import Plain
from tests.unit.gateway_formats.speech import FAMILIES, TOOLS, answer, cut, said, tokens

KIMI_CALL = '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"text": "a"}<|tool_call_end|>'
DS = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
DSML = "\n\n<｜DSML｜function_calls>\n{}\n</｜DSML｜function_calls>"

# family, what the model says, what that is
CASES: list[tuple[str, str, Answer]] = [
    ("hermes", "Just text. \n", said("Just text. \n")),
    ("hermes", "<think>\nHm.\n</think>\n\nHi", said("Hi", reasoning="Hm.\n")),
    ("hermes", "a < b <tool", said("a < b <tool")),
    (
        "hermes",
        'Let me.\n<tool_call>\n{"name": "f", "arguments": {"text": "a}\\"</tool_call>"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\nDone',
        said("Let me.Done", ("f", '{"text": "a}\\"</tool_call>"}'), ("g", "{}")),
    ),
    ("hermes", '<tool_call>{"arguments":{"count":1},"name":"f"}', said("", ("f", '{"count":1}'))),
    ("hermes", '<tool_call>{"name":"g"}</tool_call>', said("", ("g", "{}"))),
    ("hermes", '<tool_call>{"name":"g","arguments":null}</tool_call>', said("", ("g", "{}"))),
    ("hermes", '<tool_call>{"name":"f","arguments":"{\\"count\\": 1}"}', said("", ("f", '{"count": 1}'))),
    ("hermes", '<tool_call>{"id":[{}],"name":"f","arguments":{},"x":{"y":"}"}} z', said("z", ("f", "{}"))),
    ("hermes", '<tool_call>{"name":"f","arguments":{"a":[1,', said("", ("f", '{"a":[1,'))),
    ("hermes", '<tool_call>\n{"name": "f', said("")),
    ("hermes", 'So <tool_call> is a tag, {"name"', said('So <tool_call> is a tag, {"name"')),
    ("hermes", '<tool_call>{"no": 1}</tool_call>', said('<tool_call>{"no": 1}</tool_call>')),
    ("hermes", '<tool_call>{"name":"f","arguments":[1]}', said('<tool_call>{"name":"f","arguments":[1]}')),
    ("hermes", '<think>I <tool_call>{"name":"g"}', said("", ("g", "{}"), reasoning="I ")),
    (
        "qwen3_coder",
        "I will.\n\n<tool_call>\n<function=f>\n<parameter=text>\n\n two\nlines \n\n</parameter>\n"
        "<parameter=count>\n5\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n<parameter=maybe>\nNone\n"
        "</parameter>\n<parameter=list>\n[1, 2.5]\n</parameter>\n<parameter=open>\n{\"a\": 1}\n</parameter>\n"
        "<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>\n",
        said(
            "I will.",
            (
                "f",
                '{"text": "\\n two\\nlines \\n", "count": 5, "flag": true, "maybe": null, "list": [1, 2.5], '
                '"open": {"a": 1}, "other": "7"}',
            ),
        ),
    ),
    ("qwen3_coder", "<function=g>\n</function>", said("", ("g", "{}"))),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=text>\nab", said("", ("f", '{"text": "ab'))),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=count>\n1", said("", ("f", '{"count": 1'))),
    ("qwen3_coder", "<tool_call> no", said("<tool_call> no")),
    (
        "glm",
        "<think>Hm</think>Yes<tool_call>f<arg_key>text</arg_key><arg_value>a \"b\"\n</arg_value>"
        "<arg_key>map</arg_key><arg_value>{\"x\": [null]}</arg_value><arg_key>count</arg_key>"
        "<arg_value>many</arg_value></tool_call><tool_call>g</tool_call>",
        said(
            "Yes",
            ("f", '{"text": "a \\"b\\"\\n", "map": {"x": [null]}, "count": "many"}'),
            ("g", "{}"),
            reasoning="Hm",
        ),
    ),
    (
        "glm_lines",
        "\n<think></think>\n<tool_call>unknown\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        said("", ("unknown", '{"x": "1"}')),
    ),
    ("glm", "a <tool_call> tag is</tool_call>", said("a <tool_call> tag is</tool_call>")),
    (
        "kimi_k2",
        f"Sure. <|tool_calls_section_begin|>{KIMI_CALL}<|tool_call_begin|>g:1<|tool_call_argument_begin|>"
        "<|tool_call_end|><|tool_calls_section_end|>",
        said("Sure.", ("f", '{"text": "a"}'), ("g", "{}")),
    ),
    (
        "kimi_k2",
        f"<think>I<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>",
        said("", ("f", '{"text": "a"}'), reasoning="I"),
    ),
    (
        "deepseek_v3",
        DS.format(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"count\": 1}\n```<｜tool▁call▁end｜>\n"
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
        ),
        said("", ("f", '{"count": 1}'), ("g", "{}")),
    ),
    (
        "deepseek_v31",
        "<think>x</think>Hi "
        + DS.format(
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"count\": 1}<｜tool▁call▁end｜>"
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        ),
        said("Hi", ("f", '{"count": 1}'), ("function", "{}"), reasoning="x"),
    ),
    (
        "deepseek_v32",
        "Go"
        + DSML.format(
            '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="text" string="true">1</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="count" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>'
        ),
        said("Go", ("f", '{"text": "1", "count": 1}'), ("g", "{}")),
    ),
    ("llama3", '{"name": "f", "parameters": {"count": 1}}', said("", ("f", '{"count": 1}'))),
    (
        "llama3",
        'Wait<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        said("Wait", ("f", "{}"), ("g", "{}")),
    ),
    ("llama3", '{"name": "Bob"}', said('{"name": "Bob"}')),
    ("llama3", ' {"name": "Bob", "age": {"years": 5}} ', said(' {"name": "Bob", "age": {"years": 5}} ')),
    ("llama3", "<|python_tag|>print(1)", said("<|python_tag|>print(1)")),
    (
        "pythonic",
        "<|python_start|>[f(text='it\\'s \\u00e9\\ud83d\\ude00\"', count=-5, flag=True, list=[1, (2,), ],"
        " map={'a': None}), g()]<|python_end|>",
        said(
            "",
            (
                "f",
                '{"text": "it\'s é😀\\"", "count": -5, "flag": true, "list": [1, [2]], "map": {"a": null}}',
            ),
            ("g", "{}"),
        ),
    ),
    ("pythonic", '[f(count="5", maybe="5")]', said("", ("f", '{"count": 5, "maybe": "5"}'))),
    ("pythonic", "[link](http://x)", said("[link](http://x)")),
    ("pythonic", "[1, 2]", said("[1, 2]")),
    ("pythonic", "[g(), 2]", said(", 2]", ("g", "{}"))),
    ("pythonic", "[f(text='ab", said("", ("f", '{"text": "ab'))),
    (
        "harmony",
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>I call."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        '{"count": 1}<|call|>',
        said("I call.", ("f", '{"count": 1}'), reasoning="Think."),
    ),
    (
        "harmony",
        " to=functions.g<|channel|>commentary json<|message|>{}<|call|>",
        said("", ("g", "{}")),
    ),
    ("harmony", "<|channel|>final<|message|>Hello <b>\n<|return|>", said("Hello <b>\n")),
    ("harmony", "<|channel|>commentary to=functions.f", said("")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_an_answer_is_what_it_says_and_not_how_it_comes(family: str, text: str, expected: Answer) -> None:
    for pieces in (tokens(FAMILIES[family], text), [text]):
        assert answer(FAMILIES[family], pieces) == expected
        assert answer(FAMILIES[family], cut(pieces, range(len(text)))) == expected


# Parts of every family's form, from which mostly nonsense is made.
PARTS = sorted(
    {marker for family in FAMILIES.values() for marker in (*family.markers, *family.openers)}
    | {
        '{"name": "f", ',
        '"arguments": ',
        '{"a": [1, "}"]}',
        '"x\\"',
        "}",
        "]",
        "\n",
        " ",
        "text",
        "é",
        '"',
        ":",
    }
    | {
        "<function=f>",
        "<parameter=text>",
        "</parameter>",
        "</function>",
        "functions.f:0",
        "f",
        "function",
        ";",
    }
    | {
        '<｜DSML｜parameter name="',
        '" string="false">',
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        "```json",
        "```",
    }
    | {
        "[f(",
        "count=",
        "1",
        ", ",
        "'a\\u0041",
        ")",
        "analysis",
        " to=functions.f",
        "<think>",
        "</think>",
        "\\",
    }
)


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    st.sets(st.integers(0, 200)),
    st.booleans(),
)
def test_nonsense_is_read_alike_in_one_piece_and_in_many(
    name: str, text: str, edges: set[int], thinking: bool
) -> None:
    family = FAMILIES[name]
    whole = answer(family, [text], thinking=thinking)
    assert answer(family, cut([text], edges), thinking=thinking) == whole
    assert answer(family, cut([text], range(len(text))), thinking=thinking) == whole
    assert answer(family, cut(tokens(family, text), edges), thinking=thinking) == whole


@pytest.mark.parametrize("name", sorted(FAMILIES))
@given(text=st.text(st.characters(exclude_characters="<[{"), min_size=1))
def test_plain_text_stays_as_it_is(name: str, text: str) -> None:
    assert answer(FAMILIES[name], list(text)) == said(text)


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = FAMILIES["hermes"].parser(TOOLS, lambda: "id", thinking=False)
    assert parser is not None
    assert parser.push('<tool_call>\n{"name": "f", "arguments": {"te') == [
        CallBegun(0, "id", "f"),
        CallArguments(0, '{"te'),
    ]
    assert parser.push('xt": "ab') == [CallArguments(0, 'xt": "ab')]
    assert parser.push('"}') == [CallArguments(0, '"}')]
    assert parser.push("}\n</tool_call> ") == []
    assert parser.finish() == []


def test_strings_without_quotes_are_passed_on_as_they_come() -> None:
    parser = FAMILIES["qwen3_coder"].parser(TOOLS, lambda: "id", thinking=False)
    assert parser is not None
    parser.push("<tool_call>\n<function=f>\n<parameter=text>\n")
    assert parser.push('say "hi"\n</par') == [CallArguments(0, 'say \\"hi\\"')]
    assert parser.push("x") == [CallArguments(0, "\\n</parx")]


def test_text_and_reasoning_are_passed_on_as_they_come() -> None:
    parser = FAMILIES["hermes"].parser(TOOLS, lambda: "id", thinking=True)
    assert parser is not None
    assert parser.push("I th") == [Reasoning("I th")]
    assert parser.push("ink.</think>\n") == [Reasoning("ink.")]
    assert parser.push("\nHi <") == [Text("Hi")]
    assert parser.push("b>") == [Text(" <b>")]


def test_without_parallel_calls_only_the_first_counts() -> None:
    text = CASES[3][1]
    one = replace(TOOLS, parallel=False)
    assert answer(FAMILIES["hermes"], [text], tools=one) == said(
        "Let me.Done", ("f", '{"text": "a}\\"</tool_call>"}')
    )


@pytest.mark.parametrize("tools", [None, replace(TOOLS, choice="none")])
def test_without_tools_calls_are_text(tools: ToolUse | None) -> None:
    text = '<think>x</think>A\n<tool_call>\n{"name": "g"}\n</tool_call>\n'
    expected = said(text.removeprefix("<think>x</think>"), reasoning="x")
    assert answer(FAMILIES["hermes"], list(text), tools=tools) == expected


def test_a_template_opens_the_reasoning() -> None:
    family = FAMILIES["glm"]
    assert answer(family, ["so</think>\n\nHi"], thinking=True) == said("Hi", reasoning="so")
    assert answer(family, ["<think>so</think>Hi"], thinking=True) == said("Hi", reasoning="so")
    assert answer(family, ["never ends"], thinking=True) == said("", reasoning="never ends")


def test_special_tokens_of_no_form_are_not_read() -> None:
    parser = FAMILIES["hermes"].parser(TOOLS, lambda: "id", thinking=False)
    assert parser is not None
    assert [parser.push("a"), parser.special("<|im_end|>"), parser.push("b")] == [
        [Text("a")],
        [],
        [Text("b")],
    ]


def test_a_bare_counter_means_the_only_tool() -> None:
    text = "<|tool_call_begin|>0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    only = ToolUse(TOOLS.tools[1:], choice=Named("g"))
    assert answer(FAMILIES["kimi_k2"], [text], tools=only) == said("", ("g", "{}"))


def test_a_model_that_knows_no_tools_only_talks() -> None:
    text = '<tool_call>{"name": "g"}</tool_call> '
    assert answer(Plain((), thinks=False), list(text)) == said(text)


LONG = {
    "hermes": ('<tool_call>{"name":"f","arguments":{"text":"', '"}}</tool_call>'),
    "llama3": ('{"name":"f","parameters":{"text":"', '"}}'),
    "qwen3_coder": ("<function=f>\n<parameter=text>\n", "\n</parameter>\n</function>"),
    "pythonic": ("[f(text='", "')]"),
}


@pytest.mark.parametrize("name", sorted(LONG))
def test_work_grows_with_the_length_of_arguments_alone(name: str) -> None:
    before, after = LONG[name]
    short, long = (_calls(name, before + "x\\\\" * n + after) for n in (2_000, 20_000))
    assert long < 10.1 * short


def test_nothing_piles_up_in_a_megabyte_of_deep_arguments() -> None:
    arguments = (
        '{"map":' + "[" * 300_000 + '"' + "</tool_call>" * 30_000 + '"' + "9" * 40_000 + "]" * 300_000 + "}"
    )
    parser = FAMILIES["hermes"].parser(TOOLS, lambda: "id", thinking=False)
    assert isinstance(parser, Machine)
    passed = most = 0
    for char in '<tool_call>{"name":"f","arguments":' + arguments + "}</tool_call>":
        passed += sum(len(delta.text) for delta in parser.push(char) if isinstance(delta, CallArguments))
        most = max(most, parser.source.pending)
    assert passed == len(arguments)
    assert most < len("</tool_call>")


def _calls(name: str, text: str) -> int:
    """How many functions run while `text` comes one character at a time."""
    parser = FAMILIES[name].parser(TOOLS, lambda: "id", thinking=False)
    assert parser is not None
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        for char in text:
            parser.push(char)
    finally:
        sys.setprofile(None)
    return count
