"""What a prefill and a decode worker must answer together: the arithmetic of both in one process, without a mesh."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from paceline.contracts.hashing import pages_for
from paceline.engine.convert import PageConverter
from paceline.engine.interface import Engine
from paceline.engine.layout import KvDtype
from paceline.engine.registry import open_engine
from paceline.engine.step import Float32
from paceline.model.files import ModelFiles
from tests.unit.engine_torch.steps import Rows, make_step

UInt8 = npt.NDArray[np.uint8]

MARGIN = 1e-3
"""Of the largest logit, by which the best token leads everywhere: far above what the order of float32 sums moves."""


@dataclass(frozen=True)
class Oracle:
    """`prefill` computes prompts in float32, and `decode` goes on from the converted pages."""

    prefill: Engine
    decode: Engine

    @classmethod
    def load(cls, files: ModelFiles, *, prefill: KvDtype, decode: KvDtype) -> "Oracle":
        return cls(_load(files, prefill), _load(files, decode))

    def handed_over(self, prompt: list[int], count: int) -> list[int]:
        """The answer of `count` tokens to a prompt that the prefill worker computes."""
        pages = _bind(self.prefill, len(prompt))
        first = _best(_run(self.prefill, prompt, 0))
        converter = PageConverter(self.prefill.profile, self.decode.profile)
        converted = _bind(self.decode, len(prompt) + count)
        for page, group in product(range(len(pages)), range(pages.shape[1])):
            converted[page, group] = converter.convert(group, pages[page, group])
        return self._continue(len(prompt), first, count)

    def local(self, prompt: list[int], count: int) -> list[int]:
        """The answer to a prompt that the decode worker computes itself."""
        _bind(self.decode, len(prompt) + count)
        return self._continue(len(prompt), _best(_run(self.decode, prompt, 0)), count)

    def _continue(self, start: int, first: int, count: int) -> list[int]:
        answer = [first]
        for position in range(start, start + count - 1):
            answer.append(_best(_run(self.decode, answer[-1:], position)))
        return answer


def _load(files: ModelFiles, kv_dtype: KvDtype) -> Engine:
    engine = open_engine("torch", files, dtype="float32", kv_dtype=kv_dtype, threads=1)
    engine.load(lambda done, total: None)
    return engine


def _bind(engine: Engine, tokens: int) -> UInt8:
    """Fresh pages for a sequence of `tokens`, uint8 [pages, groups, page_bytes]."""
    groups, size = len(engine.layout.groups), engine.layout.page_bytes
    pages = np.zeros((pages_for(tokens), groups, size), dtype=np.uint8)
    engine.bind(pages.reshape(-1, size))
    return pages


def _run(engine: Engine, tokens: list[int], start: int) -> Float32:
    """Logits of the last of `tokens`."""
    pages = range(pages_for(start + len(tokens)))
    logits = engine.execute(make_step(Rows(tokens, start, pages), groups=engine.layout.groups))
    last: Float32 = logits[-1]
    return last


def _best(logits: Float32) -> int:
    second, first = np.argsort(logits)[-2:]
    lead = (logits[first] - logits[second]) / np.abs(logits).max()
    assert lead > MARGIN, f"tokens {first} and {second} nearly tie ({lead:.1e}): take another prompt"
    return int(first)
