"""The one shape of every result: a row, printed in a table and written as JSON."""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """`n` measurements of `metric` under `config`, in `unit`."""

    what: str
    config: dict[str, str | int | float | bool]
    metric: str
    median: float
    min: float
    max: float
    n: int
    unit: str

    @classmethod
    def of(
        cls,
        what: str,
        config: dict[str, str | int | float | bool],
        metric: str,
        values: Sequence[float],
        unit: str,
    ) -> "Row":
        return cls(
            what, config, metric, statistics.median(values), min(values), max(values), len(values), unit
        )


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least `q` of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(q * 1000) * len(ordered) // 1000) - 1))]


def arguments(description: str) -> argparse.ArgumentParser:
    """The flags that every script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument(
        "--quick", action="store_true", help="fewer cases and repetitions; ends within a minute"
    )
    return parser


def report(rows: list[Row], title: str, json_file: Path | None) -> None:
    table = Table(title=title)
    for heading in ("what", "config", "metric", "median", "min", "max", "n", "unit"):
        table.add_column(heading, justify="right" if heading in {"median", "min", "max", "n"} else "left")
    for row in rows:
        config = " ".join(f"{k}={v}" for k, v in row.config.items())
        figures = (f"{value:.4g}" for value in (row.median, row.min, row.max))
        table.add_row(row.what, config, row.metric, *figures, str(row.n), row.unit)
    Console(width=160).print(table)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
