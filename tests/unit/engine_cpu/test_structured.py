"""A real engine held to real grammars: the same answer alone and in a batch, with and without drafts."""

import json
import re

import numpy as np
import pytest

from paceline.contracts.messages import Sampling, TokenTree
from paceline.engine import vocabulary
from paceline.engine.constraint import Grammars
from paceline.engine.masks import Constraint
from paceline.engine.pages import PagePool, PageTags
from paceline.engine.plan import build_moves
from paceline.engine.runner import StepRunner, sample_row
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence
from tests.builders import make_sequence
from tests.unit.engine_cpu.engines import start
from tests.unit.engine_cpu.native import LEVELS
from tests.unit.engine_torch.bound import Bound
from tests.unit.engine_torch.models import PAGES, VOCAB, Reference
from tests.unit.engine_torch.test_parity import prompt

EOS = 2
FAMILY = json.dumps(
    {
        "grammars": [
            {
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "colour": {"enum": ["red", "green", "grey"]},
                        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
                    },
                    "required": ["colour", "sizes"],
                    "additionalProperties": False,
                    "x-guidance": {"whitespace_flexible": False},
                }
            }
        ]
    }
)
PATTERN = r"(ab|ac)[0-9]{2,5}-(left|lower)[a-f]*!"
REGEX = json.dumps({"grammars": [{"lark_grammar": f"start: /{PATTERN}/"}]})


class Running:
    """Sequences on a bound engine."""

    def __init__(self, bound: Bound) -> None:
        pool = PagePool(PAGES, PageTags(np.zeros(PAGES, dtype=np.uint64)))
        self.scheduler = Scheduler(
            pool, bound.engine.layout.groups, vocab=VOCAB, context=512, limits=Limits()
        )
        self.engine = bound.engine
        self.runner = StepRunner(bound.engine)

    def run(self, *sequences: Sequence, answers: dict[Sequence, list[int]] | None = None) -> None:
        """With `answers`, trees of right and wrong tokens are offered."""
        for sequence in sequences:
            self.scheduler.add(sequence)
        while any(s.finish_reason is None for s in sequences):
            plan = self.scheduler.schedule(0.0)
            assert plan is not None
            result = self.scheduler.commit(plan, self.runner.run(plan), sample_row, 0.0)
            assert not result.failures
            if result.moves.size:
                self.engine.execute(build_moves(result.moves))
            for sequence, answer in (answers or {}).items():
                a, b, c = [*answer[len(sequence.tokens) :][:3], 50, 50, 50][:3]
                tree = TokenTree(tokens=[(a + 1) % VOCAB, a, 7, b, c], parents=[-1, -1, 1, 1, 3])
                self.scheduler.offer(sequence, len(sequence.tokens), tree)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batches_and_drafts_change_no_token(llama: Reference, temperature: float) -> None:
    bound = start(llama.files, LEVELS[0])
    grammars = Grammars(vocabulary.of_bytes(VOCAB, {EOS}))

    def new(number: int, grammar: str) -> Sequence:
        sampling = Sampling(max_tokens=60, temperature=temperature, seed=number)
        sequence = make_sequence(
            prompt(20 + 30 * number, number), output=60, name=str(number), sampling=sampling,
            stop=frozenset({EOS}), arrival=number,
        )  # fmt: skip
        if grammar:
            sequence.constraint = grammars.constraint(grammar, [])
        return sequence

    kinds = [FAMILY, REGEX, "", FAMILY, REGEX]
    alone = [new(i, grammar) for i, grammar in enumerate(kinds)]
    for sequence in alone:
        if sequence.constraint is not None:
            sequence.constraint = _Unforced(sequence.constraint)
        Running(bound).run(sequence)
    together = [new(i, grammar) for i, grammar in enumerate(kinds)]
    Running(bound).run(*together)
    drafted = [new(i, grammar) for i, grammar in enumerate(kinds)]
    answers = {s: a.tokens for s, a in zip(drafted, alone, strict=True)}
    Running(bound).run(*drafted, answers=answers)
    for a, b, c, grammar in zip(alone, together, drafted, kinds, strict=True):
        assert a.tokens == b.tokens == c.tokens
        if a.finish_reason == "length" or not grammar:
            continue
        text = bytes(a.tokens[a.prompt_tokens :]).removesuffix(bytes((EOS,))).decode()
        if grammar is FAMILY:
            assert json.loads(text)["colour"] in ("red", "green", "grey")
        else:
            assert re.fullmatch(PATTERN, text)
    assert all(s.drafted == 0 for s in alone)
    assert any(s.accepted > 0 for s in together)
    assert all(s.accepted > 0 for s in drafted)
    assert sum(s.finish_reason == "stop" for s in alone if s.constraint is not None) >= 2


class _Unforced:
    """The same without drafts of its own."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self.take, self.take_back, self.fill = constraint.take, constraint.take_back, constraint.fill

    @property
    def ended(self) -> bool:
        return self._constraint.ended

    @property
    def error(self) -> str | None:
        return self._constraint.error

    def forced(self) -> list[int]:
        return []
