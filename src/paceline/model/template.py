"""A model's own chat template: messages in, the prompt's text out."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.contracts.errors import InvalidRequest
from paceline.model.fields import Fields, read_json
from paceline.model.files import ModelFiles
from paceline.model.gguf import GgufFile

_GGUF_SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


class ChatTemplate:
    """Renders in a sandbox, with the names and whitespace rules that Hugging Face gives its templates."""

    def __init__(
        self, default: str, *, tool_use: str | None = None, special_tokens: Mapping[str, str]
    ) -> None:
        """`tool_use` is for requests with tools. Raises `InvalidRequest` for what is no Jinja."""
        environment = _environment()
        try:
            self._default = environment.from_string(default)
            self._tool_use = environment.from_string(tool_use) if tool_use is not None else self._default
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError) as e:
            # All but the first come from too many blocks or parentheses in each other, or digits.
            raise InvalidRequest(f"the model's chat template is broken: {e}") from e
        self._special_tokens = dict(special_tokens)
        self.source = default if tool_use is None else default + tool_use
        """What it is written in, of which forms of tool calls can be told."""

    @classmethod
    def load(cls, files: ModelFiles) -> "ChatTemplate":
        """Raises `InvalidRequest` when the model has no template: it was not made to chat."""
        return _from_gguf(GgufFile(files.path)) if files.kind == "gguf" else _from_directory(files.path)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt. `options` are further variables, such as enable_thinking; they replace none of the others. Raises
        `InvalidRequest` when the template refuses the messages."""
        template = self._tool_use if tools else self._default
        variables = {
            **(options or {}),
            **self._special_tokens,
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return template.render(variables)
        except Exception as e:  # a program of the model's, over values of the caller's: it may raise anything
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {e}", param="messages"
            ) from e


def _from_gguf(file: GgufFile) -> ChatTemplate:
    fields = Fields(file.metadata, file.path)
    if "tokenizer.chat_template" not in fields:
        raise fields.refuse("there is no chat template")
    tokens = file.strings("tokenizer.ggml.tokens")
    special: dict[str, str] = {}
    for name, key in _GGUF_SPECIAL_TOKENS.items():
        for token in fields.ids(key):
            special[name] = tokens[token] if token < len(tokens) else ""
    tool_use = "tokenizer.chat_template.tool_use"
    return ChatTemplate(
        fields.text("tokenizer.chat_template"),
        tool_use=fields.text(tool_use) if tool_use in fields else None,
        special_tokens=special,
    )


def _from_directory(directory: Path) -> ChatTemplate:
    config = read_json(directory / "tokenizer_config.json")
    named = config.named_texts("chat_template", name="name", text="template")
    if (file := directory / "chat_template.jinja").is_file():
        try:
            named["default"] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise InvalidRequest(f"{file} cannot be read: {e}") from e
    if "default" not in named:
        raise config.refuse("there is no chat template")
    special = {name: config.token(name) for name in _GGUF_SPECIAL_TOKENS if name in config}
    return ChatTemplate(named["default"], tool_use=named.get("tool_use"), special_tokens=special)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Lets templates queue: published ones keep ids in lists of their own, and those of the caller are made anew for
    each rendering."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (type(obj) is list and attr in ("append", "pop")) or super().is_safe_attribute(
            obj, attr, value
        )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks for training what a model wrote; a prompt ignores it."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_unchanged"), [], [], body).set_lineno(line)

    def _unchanged(self, caller: Callable[[], str]) -> str:
        return caller()


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own would escape <, > and & for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
