"""What narrower weights, KV and arithmetic cost in quality, against the file's own weights in float32 arithmetic.

    python -m bench.quality [--quick | --all] [--only TEXT] [--data DIR] [--text FILE] [--model MODEL]
                            [--dithered] [--json FILE]

Three measures, all by likelihood: perplexity of a text, the last words of LAMBADA's passages, ARC-Easy's questions.
Each variant does the same items as the reference, and differences to it are means over items with a 95% confidence
interval (`bench/paired.py` has the formulas).

A text is cut into windows, which run as prompts do in the mesh: in chunks of 64 tokens, each of which reads the KV of
the chunks before it back from pages. The first chunk of each window is not scored. Small models lose more than large
ones: these figures compare formats, and say little about the models that these are for.

The default model's weights have been rounded to 4 bits, so that INT4 made from them finds the same grid again and costs
nothing more. `--dithered` stands in for a model that never was rounded: all is then compared with the file's weights
plus such noise as rounding made.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.live import Live
from rich.table import Table

from bench.paired import Interval
from bench.quality_findings import Finding, Metric, compare
from bench.quality_sample import ALL, QUICK, USUAL, Sample, take
from bench.quality_text import TextReference
from bench.quality_variants import DEFAULT, REFERENCE, Compared, Variant, source, variants
from bench.rows import arguments
from paceline.model.files import ModelFiles, locate
from paceline.model.pull import DEFAULT_MODEL, pull
from paceline.model.tokenizer import Tokenizer

DATA = Path(__file__).parents[2] / "shared" / "data" / "quality"
MOST = 0.01
"""Of the perplexity, what the defaults may add."""


@dataclass(frozen=True)
class Result:
    """`recoded` is the share of all weights that went through the variant's recoding."""

    variant: Variant
    recoded: float
    findings: list[Finding]

    def row(self) -> list[str]:
        share = f" ({self.recoded:.0%} of all)" if self.recoded else ""
        name = f"{self.variant.engine}: {self.variant.name}{share}\nKV {self.variant.kv}"
        found = {finding.metric: finding for finding in self.findings}
        return [name, *(_cell(found[metric]) if metric in found else "" for metric in get_args(Metric))]

    @property
    def cost(self) -> Interval | None:
        """In perplexity of the text; None of the reference."""
        return next(finding.difference for finding in self.findings if finding.metric == "perplexity")

    def records(self) -> Iterator[dict[str, object]]:
        variant = {
            "engine": self.variant.engine,
            "weights": self.variant.name,
            "kv": self.variant.kv,
            "recoded": self.recoded,
        }
        yield from (variant | asdict(finding) for finding in self.findings)


def _cell(finding: Finding) -> str:
    """The value, and below it the difference to the reference, in hundredths for perplexities and shares."""
    if finding.metric in {"mean_kl", "max_kl"}:
        return f"{finding.value:.1e}"
    relative = finding.metric.endswith("perplexity")
    value = f"{finding.value:.3f}" if relative else f"{finding.value:.1%}"
    if (difference := finding.difference) is None:
        return value
    ends = (100 * x for x in (difference.mean, difference.low, difference.high))
    mean, low, high = (f"{x:+.2f}" if relative else f"{x:+.1f}" for x in ends)
    return f"{value}\n{mean}% [{low}, {high}]"


def measure(files: ModelFiles, sample: Sample, chosen: Sequence[Variant]) -> Iterator[Result]:
    """Of the reference, and then of each variant."""
    with tempfile.TemporaryDirectory() as directory:
        engine = sample.start(files, REFERENCE)
        text = TextReference(engine, sample.windows, sample.whole, Path(directory) / "distributions")
        reference = sample.run(engine, text.scores)
        engine.close()
        own = [replace(finding, difference=None) for finding in compare(reference, reference)]
        yield Result(REFERENCE, 0.0, own)
        for recoding, alike in groupby(chosen, lambda variant: variant.recoding):
            with source(files, recoding) as (weights, share):
                for variant in alike:
                    engine = sample.start(weights, variant)
                    scores = sample.run(engine, text.run(engine))
                    engine.close()
                    yield Result(variant, share, compare(scores, reference))


def judge(cost: Interval, console: Console) -> None:
    """Exits with status 1 when what is served by default surely costs more of the perplexity than it may."""
    if cost.low > MOST:
        verdict = "more than"
    elif cost.high > MOST:
        verdict = "on this sample perhaps more than"
    else:
        verdict = "within"
    console.print(
        f"\nThe defaults cost {cost.mean:+.2%} [{cost.low:+.2%}, {cost.high:+.2%}] in perplexity, "
        f"{verdict} the {MOST:.0%} that they may."
    )
    if cost.low > MOST:
        raise SystemExit(1)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--all", action="store_true", help="every window and item, which takes hours")
    parser.add_argument("--engine", choices=get_args(Compared), default="cpu", help="whose variants")
    parser.add_argument("--only", metavar="TEXT", default="", help="variants with this in weights or KV")
    parser.add_argument("--data", type=Path, metavar="DIR", default=DATA, help="where the data sets are")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what to predict instead of WikiText-2")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument(
        "--dithered", action="store_true", help="first undo the model's own rounding to 4 bits, at random"
    )
    options = parser.parse_args()
    console = Console(width=200)
    files = locate(str(pull(options.model, lambda done, total: None)))
    size = QUICK if options.quick else ALL if options.all else USUAL
    sample = take(Tokenizer.load(files), size, options.data, options.text, console.print)
    every = variants(options.engine, crossed=not options.quick)
    chosen = [variant for variant in every if options.only in f"{variant.name} {variant.kv}"]
    table = Table("", title=f"{files.name}. {sample}", show_lines=True)
    for metric in get_args(Metric):
        table.add_column(metric.replace("_", " ").replace("accuracy", "\naccuracy"), justify="right")
    results = []
    with (
        source(files, "dithered" if options.dithered else None) as (model, _),
        Live(table, console=console, auto_refresh=False) as live,
    ):
        for result in measure(model, sample, chosen):
            results.append(result)
            table.add_row(*result.row())
            live.refresh()
            if options.json is not None:
                # Whoever stops a long run keeps what it has found.
                records = [record for each in results for record in each.records()]
                options.json.write_text(json.dumps(records, indent=1) + "\n")
    for result in results:
        if result.variant == DEFAULT and result.cost is not None:
            judge(result.cost, console)


if __name__ == "__main__":
    main()
