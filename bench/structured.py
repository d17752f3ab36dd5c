"""What a grammar costs decoding: batches that are held to a JSON schema beside batches that are not, by turns.

    python -m bench.structured [--quick] [--json FILE] [--threads N]

SmolLM2-135M-Instruct under the scheduler, prompts of 128 random tokens, sampled, medians of rounds. "masks" are the
same without the drafts that a grammar makes of what it forces: like for like, a token a step. Compare ratios.
"""

import json
import os
import statistics
import time
from collections.abc import Iterator

from bench.loop import Loop, Turn
from bench.rows import Row, arguments, report
from paceline.contracts.hashing import pages_for, tenant_salt
from paceline.contracts.messages import Sampling
from paceline.engine import vocabulary
from paceline.engine.constraint import Grammars
from paceline.engine.cpu.engine import CpuEngine
from paceline.engine.masks import Constraint
from paceline.engine.sequence import Sequence
from paceline.model.files import ModelFiles, locate
from paceline.model.pull import ensure_default
from paceline.model.tokenizer import Tokenizer

PROMPT, OUTPUT = 128, 192
SCHEMA = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 60},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "active": {"type": "boolean"},
            "kind": {"enum": ["customer", "supplier", "employee"]},
            "address": {
                "type": "object",
                "properties": {
                    "street": {"type": "string", "maxLength": 80},
                    "code": {"type": "string", "pattern": "^[0-9]{5}$"},
                },
                "required": ["street", "code"],
                "additionalProperties": False,
            },
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
        },
        "required": ["name", "age", "active", "kind", "address", "tags"],
        "additionalProperties": False,
    },
}
GRAMMAR = json.dumps({"grammars": [{"json_schema": SCHEMA}]})


class Unforced:
    """A constraint that makes no drafts."""

    def __init__(self, constraint: Constraint) -> None:
        self._of = constraint
        self.take, self.take_back, self.fill = constraint.take, constraint.take_back, constraint.fill

    @property
    def ended(self) -> bool:
        return self._of.ended

    @property
    def error(self) -> str | None:
        return self._of.error

    def forced(self) -> list[int]:
        return []


KINDS = ("free", "masks", "masks and forced tokens")


class Batch:
    """As many requests of one kind, on an engine of their own."""

    def __init__(self, kind: str, files: ModelFiles, threads: int, size: int) -> None:
        engine = CpuEngine(files, weights="auto", kv_dtype="bfloat16", threads=threads)
        engine.load(lambda done, total: None)
        tokens = vocabulary.of_tokenizer(Tokenizer.load(files), engine.vocab, engine.eos_token_ids)
        self._kind = kind
        self._size = size
        self._loop = Loop(engine, size * pages_for(PROMPT + OUTPUT + 64))
        self._grammars = Grammars(tokens)
        self._sequences: list[Sequence] = []
        self._added = 0

    def begin(self) -> None:
        """Until all of a new batch decode."""
        self._loop.drain()
        self._sequences = [self._add() for _ in range(self._size)]
        while not all(s.decoding for s in self._sequences):
            self._loop.turn()

    @property
    def whole(self) -> bool:
        """No request has ended."""
        return all(s.finish_reason is None for s in self._sequences)

    def turn(self) -> Turn:
        return self._loop.turn()

    def close(self) -> None:
        self._loop.engine.close()

    def _add(self) -> Sequence:
        self._added += 1
        prompt = [(7919 * self._added + 31 * i) % 40000 + 100 for i in range(PROMPT)]
        sequence = Sequence(
            request_id=str(self._added),
            attempt=1,
            tokens=prompt,
            prompt_tokens=PROMPT,
            sampling=Sampling(max_tokens=OUTPUT, seed=self._added, temperature=0.8),
            salt=tenant_salt("bench"),
            limit=PROMPT + OUTPUT,
            stop=frozenset(),
            arrival=time.monotonic(),
        )
        if self._kind != "free":
            held = self._grammars.constraint(GRAMMAR, [])
            sequence.constraint = Unforced(held) if self._kind == "masks" else held
        self._loop.scheduler.add(sequence)
        return sequence


def measure(threads: int, size: int, repeat: int) -> Iterator[Row]:
    files = locate(str(ensure_default(lambda done, total: None)))
    batches = [Batch(kind, files, threads, size) for kind in KINDS]
    rates: list[list[float]] = [[] for _ in KINDS]
    steps: list[list[float]] = [[] for _ in KINDS]
    for i in range(repeat + 1):
        turns: list[list[Turn]] = [[] for _ in KINDS]
        for batch in batches:
            batch.begin()
        # Step by step by turns, so that all meet the same machine.
        while all(batch.whole for batch in batches):
            for batch, done in zip(batches, turns, strict=True):
                done.append(batch.turn())
        if i == 0:
            continue  # clocks, pages and the automaton warmed up
        for done, found, times in zip(turns, rates, steps, strict=True):
            found.append(sum(t.tokens for t in done) / sum(t.seconds for t in done))
            times.append(statistics.median(t.seconds for t in done))
    for kind, found in zip(KINDS, rates, strict=True):
        yield Row.of(kind, {"batch": size}, "decode_tok_s", found, "tok/s")
    for kind, found in zip(KINDS[1:], rates[1:], strict=True):
        ratios = [held / free for held, free in zip(found, rates[0], strict=True)]
        yield Row.of(f"{kind} / free", {"batch": size}, "decode_tok_s", ratios, "x")
    # Of like steps the median tells more than a mean where others use the machine.
    ratios = [free / held for free, held in zip(steps[0], steps[1], strict=True)]
    yield Row.of("masks / free", {"batch": size}, "steps_s", ratios, "x")
    for batch in batches:
        batch.close()


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    rows: list[Row] = []
    for size in (8,) if options.quick else (1, 8, 32):
        rows += measure(options.threads, size, 3 if options.quick else 7)
    report(rows, "structured output", options.json)


if __name__ == "__main__":
    main()
