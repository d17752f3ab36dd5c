"""Request bodies to prompts and on to tokens, beside the event loop.

Rendering and tokenizing 33,000 tokens take tens of milliseconds, in which the loop has to serve everybody else: the
tokenizer releases the GIL, and the checks of a request and a rendering template give it up at every switch interval.
What decodes JSON does not: `check_amount` bounds how long that can take.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.frames import Logprobs
from paceline.gateway.answering import Answering
from paceline.gateway.ask import Ask, Conversation, Prompt, Tool, ToolUse
from paceline.gateway.deltas import TokenLogprob
from paceline.gateway.dialect import Dialect, Spoken
from paceline.gateway.formats.detect import detect
from paceline.gateway.formats.interface import Format
from paceline.gateway.growing import Growing
from paceline.gateway.router import context_too_long
from paceline.model.files import ModelFiles
from paceline.model.template import ChatTemplate
from paceline.model.tokenizer import Tokenizer

# Below it parsing takes less than going to a thread and back.
_SMALL_BODY = 64 << 10
_OPENS_REASONING = "<think>"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as workers take it. `text` is what it was encoded from, if it was text; `thinking` when it ends inside
    the model's reasoning; `parsed` when the answer is one to a conversation, whose form the model knows."""

    tokens: list[int]
    text: str | None
    grammar: str
    thinking: bool
    parsed: bool


class Tokenizing:
    """One model's tokenizer, template and form of answers, with threads to run them."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, threads: int) -> None:
        self.tokenizer = tokenizer
        self._growing = Growing(tokenizer)
        self._template = template
        self._format: Format = detect(template.source, tokenizer.markers)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenizing")

    @classmethod
    async def load(cls, files: ModelFiles, threads: int) -> "Tokenizing":
        """Raises `InvalidRequest` when the model has no tokenizer or no template of a known kind."""
        tokenizer, template = await asyncio.gather(
            asyncio.to_thread(Tokenizer.load, files), asyncio.to_thread(ChatTemplate.load, files)
        )
        return cls(tokenizer, template, threads)

    async def parse(self, dialect: Dialect, body: bytes) -> Spoken:
        """The request. Raises `InvalidRequest`, naming what is wrong with it."""
        if len(body) <= _SMALL_BODY:
            return dialect.parse(body, vocab=self.tokenizer.vocab)
        return await self.aside(lambda: dialect.parse(body, vocab=self.tokenizer.vocab))

    async def aside(self, work: Callable[[], T]) -> T:
        """What `work` gives, which is done in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def encode(self, prompt: Prompt, ask: Ask, room: int) -> Encoded:
        """The prompt with fewer than `room` tokens, and what its answer is held to. Raises `InvalidRequest` when the
        template refuses the conversation or a schema cannot be supported, and `ContextTooLong`."""
        return await self.aside(lambda: self._encode(prompt, ask, room))

    def answering(self, ask: Ask, prompt: Encoded) -> Answering:
        """What turns the tokens of one answer into deltas."""
        parser = None
        if prompt.parsed:
            parser = self._format.parser(ask.tools, new_call_id, thinking=prompt.thinking)
        return Answering(self.tokenizer, ask.stops, parser, thinking=prompt.thinking)

    def logprobs(self, tokens: Iterable[int], values: Iterable[Logprobs]) -> list[TokenLogprob]:
        """With bytes in place of ids."""
        return [
            TokenLogprob(self.content(t), v.logprob, tuple([(self.content(a), p) for a, p in v.top]))
            for t, v in zip(tokens, values, strict=True)
        ]

    def text(self, tokens: Iterable[int]) -> str:
        """What tokens say, special ones included."""
        return self.tokenizer.decode(tokens, skip_special=False)

    def content(self, token: int) -> bytes:
        """The bytes of a token, of special ones as well."""
        return self.tokenizer.token_bytes(token) or (self.tokenizer.special(token) or "").encode()

    def close(self) -> None:
        """Let go of the threads; what still runs ends in them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _encode(self, prompt: Prompt, ask: Ask, room: int) -> Encoded:
        if isinstance(prompt, tuple):
            if len(prompt) >= room:
                raise context_too_long(len(prompt), room)
            return Encoded(
                list(prompt), None, self._grammar(ask, thinking=False), thinking=False, parsed=False
            )
        parsed = isinstance(prompt, Conversation)
        text = self._render(prompt, ask.tools) if isinstance(prompt, Conversation) else prompt
        thinking = parsed and text.rstrip().endswith(_OPENS_REASONING)
        # Before the long work: what is wrong with a schema takes no tokens to tell.
        grammar = self._grammar(ask, thinking=thinking)
        # To tokenize what cannot fit would take seconds and a hundred times its size in memory.
        if (least := self.tokenizer.least_tokens(text)) >= room:
            raise context_too_long(least, room)
        tokens = self._growing.encode(text)
        if len(tokens) >= room:
            raise context_too_long(len(tokens), room)
        if not tokens:
            param = "messages" if parsed else "prompt"
            raise InvalidRequest(f"The {param} make an empty prompt", param=param)
        return Encoded(tokens, text, grammar, thinking=thinking, parsed=parsed)

    def _render(self, conversation: Conversation, tools: ToolUse | None) -> str:
        return self._template.render(
            self._format.history(conversation.messages),
            tools=[_shown(tool) for tool in tools.tools] if tools else None,
            options=conversation.options,
        )

    def _grammar(self, ask: Ask, *, thinking: bool) -> str:
        return self._format.grammar(ask.tools, ask.shape, thinking=thinking) or ""


def new_call_id() -> str:
    """For a tool call, unique in the world."""
    return f"call_{secrets.token_hex(12)}"


def _shown(tool: Tool) -> dict[str, Any]:
    """As Hugging Face's templates take it."""
    # Some templates print what is missing.
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
    return {"type": "function", "function": function}
