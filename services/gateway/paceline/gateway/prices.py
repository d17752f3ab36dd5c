"""What an answer costs in money, where the operator has set prices."""

from dataclasses import dataclass

from paceline.gateway.answer import Usage


@dataclass(frozen=True, slots=True)
class Prices:
    """Per million tokens, in any currency."""

    input: float
    cached_input: float
    output: float

    def cost(self, usage: Usage) -> float:
        fresh = usage.prompt_tokens - usage.cached.total
        money = (
            fresh * self.input
            + usage.cached.total * self.cached_input
            + usage.completion_tokens * self.output
        )
        return money / 1e6


def parse_prices(text: str) -> Prices | None:
    """Of "INPUT,CACHED,OUTPUT", or None of "". Raises `ValueError`."""
    if not text:
        return None
    numbers = [float(part) for part in text.split(",")]
    if len(numbers) != 3 or not all(0 <= n < float("inf") for n in numbers):
        raise ValueError("three prices are needed: of input, cached input and output")
    return Prices(*numbers)
