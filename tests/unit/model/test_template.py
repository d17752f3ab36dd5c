"""Templates see what Hugging Face's own renderer shows them, and can do no harm."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import pre_tokenizers

from paceline.contracts.errors import InvalidRequest
from paceline.model.files import ModelFiles
from paceline.model.template import ChatTemplate
from tests.unit.model.files import train_tokenizer, write_gguf

library: Any = transformers  # typed only in part

CHAT = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": 'Größe?\n "quoted" 🙂'},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": ["<a>", "é"]}}}]

TEMPLATE = """\
{{ bos_token }}
{%- if tools %}
    {{- tools | tojson }}
    {{- tools[0] | tojson(indent=2) }}
{%- endif %}
{% for message in messages %}
    {% if message.role == 'skip' %}{% continue %}{% endif %}
    {% generation %}[{{ message['role'] }}]{% endgeneration %} {{ message.content | trim }}{{ eos_token }}
{% endfor %}
{%- if add_generation_prompt %}>{% endif %}"""


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("prompt", [True, False])
def test_agrees_with_transformers(tools: list[dict[str, Any]] | None, prompt: bool) -> None:
    """Whitespace, loop controls, generation blocks, JSON that is not escaped for HTML."""
    tokenizer = library.PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(pre_tokenizers.ByteLevel()), bos_token="<s>", eos_token="</s>"
    )
    messages = [*CHAT, {"role": "skip", "content": "never"}]
    expected = tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=prompt
    )
    found = template(TEMPLATE).render(messages, tools=tools, add_generation_prompt=prompt)
    assert found == expected
    assert "never" not in found


def test_the_clock() -> None:
    assert template("{{ strftime_now('%Y') }}").render([]) in {str(datetime.now().astimezone().year)}


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        # The sandbox: neither the interpreter nor the caller's messages are in reach.
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.clear() }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_what_a_template_refuses_is_the_callers_fault(source: str) -> None:
    with pytest.raises(InvalidRequest, match="template refuses these messages") as refused:
        template(source).render(CHAT)
    assert refused.value.param == "messages"


def test_reason_reaches_the_caller() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "9" * 5000 + " }}",
    ],
)
def test_broken_templates_are_refused_at_once(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template is broken"):
        template(source)


def load_hf(directory: Path, config: dict[str, Any]) -> ChatTemplate:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return ChatTemplate.load(ModelFiles("m", "hf", directory))


def test_directory(tmp_path: Path) -> None:
    config: dict[str, Any] = {"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": None}
    with pytest.raises(InvalidRequest, match="no chat template"):
        load_hf(tmp_path, config)
    one = load_hf(tmp_path, config | {"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}"})
    assert one.render([]) == "<b><e>"
    pair = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    several = load_hf(tmp_path, config | {"chat_template": pair})
    assert (several.render([]), several.render([], tools=TOOLS)) == ("plain", "tools")
    (tmp_path / "chat_template.jinja").write_text("größer")
    assert load_hf(tmp_path, config).render([]) == "größer"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match=r"chat_template\.jinja cannot be read"):
        load_hf(tmp_path, config)


def test_gguf(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": ["<s>", "</s>"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    bare = ModelFiles("m", "gguf", write_gguf(tmp_path / "bare.gguf", metadata, {}))
    with pytest.raises(InvalidRequest, match="no chat template"):
        ChatTemplate.load(bare)
    metadata["tokenizer.chat_template"] = "{{ bos_token }}{{ messages[0].role }}{{ eos_token }}"
    files = ModelFiles("m", "gguf", write_gguf(tmp_path / "m.gguf", metadata, {}))
    assert ChatTemplate.load(files).render(CHAT) == "<s>system</s>"
