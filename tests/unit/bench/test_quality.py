import io

import pytest
from rich.console import Console

from bench.paired import Interval
from bench.quality import judge


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (Interval(0.002, 0.001, 0.003), "+0.20% [+0.10%, +0.30%] in perplexity, within the 1%"),
        (Interval(0.009, 0.007, 0.011), "on this sample perhaps more than the 1%"),
    ],
)
def test_defaults_that_may_be_good_enough(interval: Interval, verdict: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    judge(interval, console)
    assert isinstance(console.file, io.StringIO)
    assert verdict in console.file.getvalue()


def test_defaults_that_cost_too_much_fail() -> None:
    with pytest.raises(SystemExit, match="1"):
        judge(Interval(0.02, 0.011, 0.03), Console(file=io.StringIO()))
