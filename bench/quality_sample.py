"""What every variant does: windows of a text and items of data sets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.paired import FEWEST
from bench.quality_findings import Scores
from bench.quality_likelihood import Prompt, encode, likelihoods, pool_pages
from bench.quality_tasks import Item, read_arc, read_lambada, score_choices, score_words, spread
from bench.quality_text import TextScores
from bench.quality_variants import Variant
from bench.windows import BATCH, cut, read_text, scored
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.interface import Engine
from paceline.engine.step import Int32
from paceline.model.files import ModelFiles
from paceline.model.tokenizer import Tokenizer

_EVERY = 10**9


@dataclass(frozen=True)
class Size:
    """How much of the data is taken: windows of `length` tokens, of which `whole` have their distributions compared;
    passages of LAMBADA, questions of ARC-Easy."""

    length: int
    windows: int
    whole: int
    passages: int
    questions: int


QUICK = Size(length=256, windows=6, whole=2, passages=8, questions=16)
USUAL = Size(length=512, windows=40, whole=4, passages=128, questions=160)
ALL = Size(length=512, windows=_EVERY, whole=4, passages=_EVERY, questions=_EVERY)


@dataclass(frozen=True)
class Task:
    """Items of a data set that has `of`, with their tokens."""

    items: list[Item]
    prompts: list[Prompt]
    of: int


@dataclass(frozen=True)
class Sample:
    """`text` names where the windows [W, length] are from; no task where its data is missing."""

    text: str
    windows: Int32
    whole: int
    lambada: Task | None
    arc: Task | None

    @property
    def pages(self) -> int:
        """Of each page group, for all that runs at a time."""
        count, length = self.windows.shape
        windows: int = min(count, BATCH) * length // PAGE_TOKENS
        tasks = (task for task in (self.lambada, self.arc) if task)
        return max([windows, *(pool_pages(task.prompts) for task in tasks)])

    def start(self, files: ModelFiles, variant: Variant) -> Engine:
        """The engine of `variant`, with its pages."""
        engine = variant.open(files)
        count = self.pages * len(engine.layout.groups)
        engine.bind(np.zeros((count, engine.layout.page_bytes), dtype=np.uint8))
        return engine

    def run(self, engine: Engine, text: TextScores) -> Scores:
        """Both tasks, beside what `engine` made of the text."""
        return Scores(
            text,
            score_words(likelihoods(engine, self.lambada.prompts)) if self.lambada else None,
            score_choices(self.arc.items, likelihoods(engine, self.arc.prompts)) if self.arc else None,
        )

    def __str__(self) -> str:
        count, length = self.windows.shape
        parts = [
            f"{self.text}: {count} windows of {length} tokens, {count * scored(length)} of them predicted "
            f"(KL on {min(self.whole, count)} windows)",
            *(f"{len(task.items)} of {task.of} {what}" for task, what in self._tasks() if task),
        ]
        return "; ".join(parts)

    def _tasks(self) -> list[tuple[Task | None, str]]:
        return [(self.lambada, "passages of LAMBADA"), (self.arc, "questions of ARC-Easy")]


def take(
    tokenizer: Tokenizer, size: Size, data: Path, text: Path | None, warn: Callable[[str], None]
) -> Sample:
    """A sample of `data`, a directory; of `text` instead of WikiText-2 if that is given. `warn` hears of each file
    that is not there: the repository's own prose stands in for the text, and nothing for a task.

    Exits when the text is too short.
    """
    text = text or data / "wikitext2_test.txt"
    if not text.is_file():
        warn(f"{text} is not there: the repository's prose is predicted instead")
    found = text if text.is_file() else None
    windows = cut(tokenizer.encode(read_text(found)), size.length)
    windows = windows[spread(len(windows), size.windows)]
    if len(windows) < FEWEST:
        raise SystemExit(f"the text has {len(windows)} windows of {size.length} tokens, less than {FEWEST}")

    def task(name: str, read: Callable[[Path], Sequence[Item]], most: int) -> Task | None:
        path = data / name
        if not path.is_file():
            warn(f"{path} is not there: skipped")
            return None
        items = read(path)
        taken = [items[i] for i in spread(len(items), most)]
        prompts = [encode(tokenizer, item.context, item.continuations) for item in taken]
        return Task(taken, prompts, len(items))

    return Sample(
        found.name if found else "the repository's prose",
        windows,
        size.whole,
        task("lambada_openai.jsonl", read_lambada, size.passages),
        task("arc_easy.jsonl", read_arc, size.questions),
    )
