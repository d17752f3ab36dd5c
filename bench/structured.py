"""What a grammar costs decoding: batches that are held to a JSON schema beside batches that are not, by turns.

    python -m bench.structured [--quick] [--json FILE] [--threads N]

SmolLM2-135M-Instruct under the scheduler, prompts of 128 random tokens, sampled, medians of rounds. "masks" are the
same without the drafts that a grammar makes of what it forces: like for like, a token a step. Compare ratios.
"""

import json
import os
import time
from collections.abc import Iterator

from bench.loop import Loop
from bench.rows import Row, arguments, report
from paceline.contracts.hashing import pages_for, tenant_salt
from paceline.contracts.messages import Sampling
from paceline.engine import vocabulary
from paceline.engine.constraint import Grammars
from paceline.engine.cpu.engine import CpuEngine
from paceline.engine.sequence import Sequence
from paceline.model.files import locate
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

    def __init__(self, grammars: Grammars) -> None:
        self._of = grammars.constraint(GRAMMAR, [])
        self.take, self.take_back, self.fill = self._of.take, self._of.take_back, self._of.fill

    @property
    def ended(self) -> bool:
        return self._of.ended

    @property
    def error(self) -> str | None:
        return self._of.error

    def forced(self) -> list[int]:
        return []


class Bench:
    def __init__(self, threads: int, batch: int) -> None:
        files = locate(str(ensure_default(lambda done, total: None)))
        engine = CpuEngine(files, weights="auto", kv_dtype="bfloat16", threads=threads)
        engine.load(lambda done, total: None)
        self.batch = batch
        self.loop = Loop(engine, batch * pages_for(PROMPT + OUTPUT + 64))
        tokens = vocabulary.of_tokenizer(Tokenizer.load(files), engine.vocab, engine.eos_token_ids)
        self.grammars = Grammars(tokens)
        self._added = 0

    def rate(self, kind: str) -> float:
        """Tokens per second, from when all sequences decode until the first one ends."""
        sequences = [self._add(kind) for _ in range(self.batch)]
        tokens, seconds = 0, 0.0
        while all(s.finish_reason is None for s in sequences):
            together = all(s.decoding for s in sequences)
            turn = self.loop.turn()
            if together:
                tokens += turn.tokens
                seconds += turn.seconds
        self.loop.drain()
        return tokens / seconds

    def _add(self, kind: str) -> Sequence:
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
        match kind:
            case "masks":
                sequence.constraint = Unforced(self.grammars)
            case "masks and forced tokens":
                sequence.constraint = self.grammars.constraint(GRAMMAR, [])
        self.loop.scheduler.add(sequence)
        return sequence


KINDS = ("free", "masks", "masks and forced tokens")


def measure(threads: int, batch: int, repeat: int) -> Iterator[Row]:
    bench = Bench(threads, batch)
    for kind in KINDS:
        bench.rate(kind)  # clocks, pages and the automaton warm up
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(repeat):
        for kind, found in rates.items():
            found.append(bench.rate(kind))
    for kind, found in rates.items():
        yield Row.of(kind, {"batch": batch}, "decode_tok_s", found, "tok/s")
    for kind in KINDS[1:]:
        ratios = [held / free for held, free in zip(rates[kind], rates["free"], strict=True)]
        yield Row.of(f"{kind} / free", {"batch": batch}, "decode_tok_s", ratios, "x")
    bench.loop.engine.close()


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    rows: list[Row] = []
    for batch in (8,) if options.quick else (1, 8, 32):
        rows += measure(options.threads, batch, 3 if options.quick else 7)
    report(rows, "structured output", options.json)


if __name__ == "__main__":
    main()
