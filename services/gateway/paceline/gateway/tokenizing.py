"""Conversations to tokens, beside the event loop.

Rendering and tokenizing 33,000 tokens take tens of milliseconds, in which the loop has to serve everybody else: the
tokenizer releases the GIL, and a rendering template gives it up at every switch interval.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from paceline.contracts.errors import InvalidRequest
from paceline.model.files import ModelFiles
from paceline.model.template import ChatTemplate
from paceline.model.tokenizer import Tokenizer


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

    async def encode(self, conversation: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of the prompt. Raises `InvalidRequest` when the template refuses the conversation."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._encode, conversation)

    def close(self) -> None:
        """Let go of the threads; what still runs ends in them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _encode(self, conversation: Sequence[Mapping[str, str]]) -> list[int]:
        tokens = self.tokenizer.encode(self._template.render(conversation))
        if not tokens:
            raise InvalidRequest("The messages make an empty prompt", param="messages")
        return tokens
