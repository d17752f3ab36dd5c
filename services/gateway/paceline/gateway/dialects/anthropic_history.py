"""Turns of Anthropic's Messages to messages of a chat template."""

from collections.abc import Sequence
from typing import Any

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.dialects.anthropic_blocks import (
    AssistantTurn,
    SystemTurn,
    TextBlock,
    Texts,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    UserTurn,
    joined,
)
from paceline.gateway.dialects.decoding import decode_within

# More than a model writes in one call.
MAX_INPUT_BYTES = 512 << 10

# Claude Code puts this line before its prompt. Some versions change a hash in it with every request, behind which no
# cached prefix would be found.
_BILLING = "x-anthropic-billing-header:"


def conversation(system: Texts | None, turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The messages, in order; turns of one role that follow each other stay apart.

    Raises `InvalidRequest` for the result of an unknown call, and for a conversation that ends with an answer.
    """
    messages = _system(system)
    names: dict[str, str] = {}
    for i, turn in enumerate(turns):
        match turn:
            case SystemTurn(content):
                messages.append({"role": "system", "content": joined(content)})
            case UserTurn():
                messages += _user(turn, names, f"messages[{i}]")
            case AssistantTurn():
                messages.append(_assistant(turn, names, f"messages[{i}]"))
    if isinstance(turns[-1], AssistantTurn):
        raise InvalidRequest(
            "The conversation ends with the assistant; this server cannot continue an answer that was begun for it: "
            "end with a turn of the user",
            param=f"messages[{len(turns) - 1}]",
        )
    return messages


def _system(system: Texts | None) -> list[dict[str, Any]]:
    if isinstance(system, list):
        text = "\n".join(kept for block in system if (kept := _without_billing(block.text)))
    else:
        text = _without_billing(system or "")
    return [{"role": "system", "content": text}] if text else []


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _user(turn: UserTurn, names: dict[str, str], at: str) -> list[dict[str, Any]]:
    """Results of tools first: templates expect them right behind the calls."""
    if isinstance(turn.content, str):
        return [{"role": "user", "content": turn.content}]
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    for i, block in enumerate(turn.content):
        match block:
            case TextBlock(text):
                texts.append(text)
            case ToolResultBlock():
                messages.append(_result(block, names, f"{at}.content[{i}]"))
    if texts or not messages:
        messages.append({"role": "user", "content": "\n".join(texts)})
    return messages


def _result(block: ToolResultBlock, names: dict[str, str], at: str) -> dict[str, Any]:
    name = names.get(block.tool_use_id)
    if name is None:
        raise InvalidRequest(
            f"No tool_use block before it has the id {block.tool_use_id!r}", param=f"{at}.tool_use_id"
        )
    text = joined(block.content)
    # Templates have no other place for it, and a model should not take a failure for the answer.
    content = f"Error: {text}" if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "name": name, "content": content}


def _assistant(turn: AssistantTurn, names: dict[str, str], at: str) -> dict[str, Any]:
    """Notes the names of the turn's calls in `names`. Pieces of one answer are joined as they were cut: by nothing."""
    if isinstance(turn.content, str):
        return {"role": "assistant", "content": turn.content}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(b.text for b in turn.content if isinstance(b, TextBlock)),
    }
    if reasoning := "".join(b.thinking for b in turn.content if isinstance(b, ThinkingBlock)):
        message["reasoning_content"] = reasoning
    calls = []
    for i, block in enumerate(turn.content):
        if isinstance(block, ToolUseBlock):
            names[block.id] = block.name
            calls.append(_call(block, f"{at}.content[{i}]"))
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: ToolUseBlock, at: str) -> dict[str, Any]:
    arguments = decode_within(block.input, MAX_INPUT_BYTES, f"{at}.input")
    if not isinstance(arguments, dict):
        raise InvalidRequest("The input of a call is a JSON object", param=f"{at}.input")
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
