"""The body of POST /client/v4/accounts/{id}/ai/run/{model}, and what it asks for.

Unknown fields are ignored; a known one that would change the answer and is not supported is refused by name.
"""

import secrets
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.gateway.ask import NO_LIMIT, Ask, Conversation, JsonSchema, Prompt
from paceline.gateway.dialects.chat_messages import MAX_MESSAGES, check_messages, conversation
from paceline.gateway.dialects.chat_tools import MAX_TOOLS, Choice, schema_of, tool_use
from paceline.gateway.dialects.decoding import decode
from paceline.gateway.dialects.openai_fields import LEAST_TEMPERATURE
from paceline.gateway.dialects.workers_ai_messages import RunMessage, RunTool, chat_messages, tool_specs

# Workers AI's own: clients that want more say so.
DEFAULT_MAX_TOKENS = 256

_ABSENT = (b"", b"null", b'""', b"[]")


class RunOptions(msgspec.Struct, frozen=True, rename="camel"):
    """What is said about the request itself."""

    reject_if_busy: bool | None = None


class RunFormat(msgspec.Struct, frozen=True):
    """The shape of the answer. `json_schema` is the schema, or OpenAI's object around it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Raw = Raw()


class RunBody(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came. None is the same as absent everywhere."""

    prompt: Annotated[str, Meta(min_length=1)] | None = None
    messages: Annotated[list[RunMessage], Meta(max_length=MAX_MESSAGES)] | None = None
    raw: bool | None = None
    stream: bool | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    tools: Annotated[list[RunTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    response_format: RunFormat | None = None
    options: RunOptions | None = None
    functions: Raw = Raw()
    image: Raw = Raw()
    lora: Raw = Raw()

    def sampling(self) -> Sampling:
        """A missing seed is drawn here, so that a request that moves to another worker keeps its random numbers."""
        temperature = _or(self.temperature, 1.0)
        return Sampling(
            max_tokens=min(self.max_tokens or DEFAULT_MAX_TOKENS, NO_LIMIT),
            temperature=0.0 if temperature < LEAST_TEMPERATURE else temperature,
            top_p=_or(self.top_p, 1.0),
            top_k=self.top_k or 0,
            presence_penalty=_or(self.presence_penalty, 0.0),
            frequency_penalty=_or(self.frequency_penalty, 0.0),
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            seed=secrets.randbits(63) if self.seed is None else self.seed % 2**63,
        )


_decoder = msgspec.json.Decoder(RunBody)


def parse(body: bytes, model: str) -> Ask:
    """Raises `InvalidRequest` whose `param` is the path of the first thing that is wrong."""
    request = decode(_decoder, body)
    for field, message in (
        ("functions", "This server runs no functions: use tools"),
        ("image", "Only text is supported"),
        ("lora", "LoRA adapters are not supported"),
    ):
        if bytes(getattr(request, field)) not in _ABSENT:
            raise InvalidRequest(message, param=field)
    return Ask(
        model=model,
        prompts=(_prompt(request),),
        sampling=request.sampling(),
        tools=tool_use(tool_specs(request.tools), request.tool_choice, parallel=True),
        shape=_shape(request.response_format),
        stream=bool(request.stream),
        refuse_if_busy=request.options is not None and bool(request.options.reject_if_busy),
    )


def _prompt(request: RunBody) -> Prompt:
    if request.messages is not None:
        if request.prompt is not None:
            raise InvalidRequest("prompt and messages exclude each other", param="prompt")
        if request.raw:
            raise InvalidRequest("Only a prompt can be raw: messages need the model's template", param="raw")
        chat = chat_messages(request.messages)
        check_messages(chat)
        return Conversation(conversation(chat))
    if request.prompt is None:
        raise InvalidRequest("Either prompt or messages is needed", param="messages")
    return request.prompt if request.raw else Conversation([{"role": "user", "content": request.prompt}])


def _shape(form: RunFormat | None) -> JsonSchema | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return JsonSchema({"type": "object"})
    given = schema_of(form.json_schema, "response_format.json_schema")
    # No keyword of JSON Schema is called so.
    schema = given.get("schema")
    return JsonSchema(schema if isinstance(schema, dict) else given)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
