"""POST /tokenize and /detokenize, with the fields of vLLM's and of llama.cpp's servers."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, field

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.gateway.ask import NO_LIMIT, Ask, Conversation
from paceline.gateway.dialects.chat_messages import (
    MAX_MESSAGES,
    ChatMessage,
    check_messages,
    conversation,
    template_options,
)
from paceline.gateway.dialects.chat_tools import MAX_TOOLS, ToolSpec, tool_use
from paceline.gateway.dialects.decoding import decode

MAX_TOKENS = 1 << 20


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One of `prompt` or `content`, which are text, and `messages`, which the model's template makes text of."""

    model: str = ""
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[ChatMessage], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[ToolSpec], Meta(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: Raw = field(default_factory=Raw)


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids."""

    tokens: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_TOKENS)]
    model: str = ""


def parse_tokenize(body: bytes) -> Ask:
    """What is to be tokenized, as the prompt of a request. Raises `InvalidRequest`."""
    request = decode(_tokenize, body)
    text = request.prompt if request.prompt is not None else request.content
    if (text is None) == (request.messages is None):
        raise InvalidRequest("One of prompt, content and messages is needed", param="prompt")
    if request.messages is not None:
        check_messages(request.messages)
    messages, options = conversation(request.messages or ()), template_options(request.chat_template_kwargs)
    return Ask(
        model=request.model,
        prompts=(text if text is not None else Conversation(messages, options),),
        sampling=Sampling(max_tokens=NO_LIMIT),
        tools=tool_use(request.tools, None, parallel=True),
    )


def tokenized(tokens: Sequence[int], pieces: Sequence[str], room: int) -> dict[str, Any]:
    """The body of an answer. `pieces` are what the tokens say."""
    return {
        "count": len(tokens),
        "max_model_len": room,
        "tokens": list(tokens),
        "token_strs": list(pieces),
    }


def parse_detokenize(body: bytes, *, vocab: int) -> list[int]:
    """Token ids. Raises `InvalidRequest`."""
    tokens = decode(_detokenize, body).tokens
    for i, token in enumerate(tokens):
        if token >= vocab:
            message = f"Token {token} is not in the vocabulary of {vocab}"
            raise InvalidRequest(message, param=f"tokens[{i}]")
    return tokens


def detokenized(text: str) -> dict[str, Any]:
    """The body of an answer, under the names of both servers."""
    return {"prompt": text, "content": text}


_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)
