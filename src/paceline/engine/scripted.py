"""An engine that says what a script says, so that clients can be tested on whole answers.

It is the fake engine in all but its logits: KV is written, moved and read as there, and what has been said so far is
read out of the pages. Where these do not hold the KV of one text, or the script has nothing for it, the fake engine's
own logits stay.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

import msgspec
import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.fake import FakeEngine, kv_of
from paceline.engine.step import Float32, Int32, Int64, Step
from paceline.model.config import read_config
from paceline.model.files import ModelFiles
from paceline.model.tokenizer import Tokenizer

FILE = "script.json"
# Far above what the temperature or the penalties of a request could level.
_CERTAIN = 200.0
_PROMPTS = 256


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`answer` follows a conversation in which no other line's cue comes after its own.

    The first `failures` times its end cannot be computed, so that the request fails in mid-answer.
    """

    cue: str
    answer: str
    failures: int = 0


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`opening` is what the model's template puts before each answer. `otherwise` follows what holds no cue."""

    opening: str
    lines: list[Line]
    otherwise: str | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """What is to be said to one conversation, in tokens with the one that ends it."""

    line: Line
    tokens: tuple[int, ...]


def has_script(files: ModelFiles) -> bool:
    """Whether a model directory holds a script."""
    return files.kind == "hf" and (files.path / FILE).is_file()


class ScriptedEngine(FakeEngine):
    """Implements `Engine`, for a model directory with a script."""

    def __init__(self, files: ModelFiles, *, base_s: float = 0.0) -> None:
        """Raises `InvalidRequest` for a script or a tokenizer that cannot be read."""
        super().__init__(read_config(files), base_s=base_s)
        self._tokenizer = Tokenizer.load(files)
        self._script = _read(files.path / FILE)
        self._opening = np.array(self._tokenizer.encode(self._script.opening), dtype=np.int64)
        self._end = min(self.eos_token_ids)
        self._failed: Counter[Line] = Counter()
        self._part = lru_cache(_PROMPTS)(self._find)

    def execute(self, step: Step) -> Float32:
        logits = super().execute(step)
        for r, row in enumerate(step.logit_rows.tolist()):
            tokens = self._context(step, row)
            start = _end_of_last(self._opening, tokens)
            if start is not None and (part := self._part(tokens[:start].tobytes())) is not None:
                logits[r] = self._logits_after(part, tuple(tokens[start:].tolist()))
        return logits

    def _context(self, step: Step, row: int) -> Int64:
        """The tokens that a row sees, itself included, by the KV of its pages; none where that is no text's."""
        if self._kv is None:
            raise RuntimeError("execute before bind")
        s = int(np.searchsorted(step.query_starts, row, side="right")) - 1
        drafts = _drafts(step.parents, row)
        count = int(step.positions[row]) + 1 - len(drafts)
        pages = step.page_table[0, s, : -(-count // PAGE_TOKENS)]
        kv = self._kv[pages].swapaxes(1, 2).reshape(-1, 2, self._kv.shape[-1])[:count]
        tokens = kv[:, 0, 0].astype(np.int64)
        if not np.array_equal(kv, kv_of(tokens, np.arange(count))):
            return np.empty(0, dtype=np.int64)
        return np.concatenate([tokens, step.tokens[drafts].astype(np.int64)])

    def _find(self, conversation: bytes) -> _Part | None:
        """For the bytes of the int64 tokens of a conversation with an opening at its end."""
        tokens = np.frombuffer(conversation, dtype=np.int64)
        line = _line_for(self._script, self._tokenizer.decode(tokens.tolist(), skip_special=False))
        return _Part(line, (*self._tokenizer.encode(line.answer), self._end)) if line else None

    def _logits_after(self, part: _Part, said: Sequence[int]) -> Float32:
        """Of the next token. What has left the script ends at once."""
        logits = np.zeros(self.vocab, dtype=np.float32)
        rest = part.tokens[len(said) :] if part.tokens[: len(said)] == said else ()
        logits[rest[0] if rest else self._end] = _CERTAIN
        if len(rest) == 1 and self._failed[part.line] < part.line.failures:
            self._failed[part.line] += 1
            logits[:] = np.nan
        return logits


def _line_for(script: Script, text: str) -> Line | None:
    found = [(place, line) for line in script.lines if (place := text.rfind(line.cue)) >= 0]
    if found:
        return max(found, key=itemgetter(0))[1]
    return None if script.otherwise is None else Line("", script.otherwise)


def _drafts(parents: Int32, row: int) -> list[int]:
    """The draft rows that a row sees, itself included, oldest first."""
    path: list[int] = []
    while parents[row] >= 0:
        path.append(row)
        row = int(parents[row])
    return path[::-1]


def _end_of_last(wanted: Int64, tokens: Int64) -> int | None:
    """Where the last occurrence of `wanted` in `tokens` ends."""
    if len(tokens) < len(wanted):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(wanted))
    starts = np.flatnonzero((windows == wanted).all(axis=1))
    return int(starts[-1]) + len(wanted) if len(starts) else None


def _read(path: Path) -> Script:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Script)
    except msgspec.DecodeError as e:
        raise InvalidRequest(f"{path} is no script: {e}") from e
