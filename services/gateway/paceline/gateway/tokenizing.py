"""Request bodies to conversations and on to tokens, beside the event loop.

Rendering and tokenizing 33,000 tokens take tens of milliseconds, in which the loop has to serve everybody else: the
tokenizer releases the GIL, and the checks of a request and a rendering template give it up at every switch interval.
What decodes JSON does not: the limit on the size of a body bounds that to about 25 ms.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from paceline.contracts.errors import InvalidRequest
from paceline.gateway import openai
from paceline.gateway.openai import ChatRequest
from paceline.gateway.router import context_too_long
from paceline.model.files import ModelFiles
from paceline.model.template import ChatTemplate
from paceline.model.tokenizer import Tokenizer

# Below it parsing takes less than going to a thread and back.
_SMALL_BODY = 64 << 10


class Tokenizing:
    """One model's tokenizer and template with threads to run them."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, threads: int) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenizing")

    @classmethod
    async def load(cls, files: ModelFiles, threads: int) -> "Tokenizing":
        """Raises `InvalidRequest` when the model has no tokenizer or no template of a known kind."""
        tokenizer, template = await asyncio.gather(
            asyncio.to_thread(Tokenizer.load, files), asyncio.to_thread(ChatTemplate.load, files)
        )
        return cls(tokenizer, template, threads)

    async def parse(self, body: bytes) -> ChatRequest:
        """The request. Raises `InvalidRequest`, naming what is wrong with it."""
        if len(body) <= _SMALL_BODY:
            return self._parse(body)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._parse, body)

    async def encode(self, chat: ChatRequest, room: int) -> list[int]:
        """The tokens of the prompt, fewer than `room`. Raises `InvalidRequest` when the template refuses the
        conversation, and `ContextTooLong`."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._encode, chat, room)

    def close(self) -> None:
        """Let go of the threads; what still runs ends in them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _parse(self, body: bytes) -> ChatRequest:
        return openai.parse(body, vocab=self.tokenizer.vocab)

    def _encode(self, chat: ChatRequest, room: int) -> list[int]:
        text = self._template.render(chat.conversation())
        # To tokenize what cannot fit would take seconds and a hundred times its size in memory.
        if (least := self.tokenizer.least_tokens(text)) >= room:
            raise context_too_long(least, room)
        tokens = self.tokenizer.encode(text)
        if len(tokens) >= room:
            raise context_too_long(len(tokens), room)
        if not tokens:
            raise InvalidRequest("The messages make an empty prompt", param="messages")
        return tokens
