"""Grammars of a worker's requests, compiled beside its event loop and its engine."""

import asyncio
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import structlog

from paceline.contracts.errors import InvalidRequest
from paceline.engine import vocabulary
from paceline.engine.constraint import Grammars
from paceline.engine.masks import Constraint
from paceline.model.files import ModelFiles
from paceline.model.tokenizer import Tokenizer

log = structlog.get_logger(__name__)

_NICE = 10
"""How far compiling stands back, behind the engine too: whoever waits for it is one request."""


class GrammarThread:
    """Makes constraints in a thread of its own, one at a time."""

    def __init__(self, files: ModelFiles | None, vocab: int, eos_ids: Collection[int]) -> None:
        """Of the model in `files`; without one tokens are bytes."""
        self._files = files
        self._vocab = vocab
        self._eos_ids = eos_ids
        self._grammars: Grammars | None = None
        self._obstacle = ""
        self._thread = ThreadPoolExecutor(1, "grammars", os.nice, (_NICE,))

    def load(self) -> "asyncio.Future[None]":
        """Read the model's vocabulary, before there are requests that would have to wait meanwhile."""
        return asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    async def constraint(self, grammar: str, output: list[int]) -> Constraint:
        """In the state behind `output`.

        Raises `InvalidRequest` for a grammar that cannot be compiled or that forbids `output`, and where the model has
        no tokenizer that grammars can be told by.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._make, grammar, output)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _load(self) -> None:
        try:
            if self._files is None:
                tokens = vocabulary.of_bytes(self._vocab, self._eos_ids)
            else:
                tokens = vocabulary.of_tokenizer(Tokenizer.load(self._files), self._vocab, self._eos_ids)
        except (InvalidRequest, ValueError) as error:
            log.info("no_grammars", reason=str(error))
            self._obstacle = str(error)
        else:
            self._grammars = Grammars(tokens)

    def _make(self, grammar: str, output: list[int]) -> Constraint:
        if self._grammars is None:
            raise InvalidRequest(f"this model cannot be held to a grammar: {self._obstacle}", param="grammar")
        return self._grammars.constraint(grammar, output)
