"""A service for tests of `run`: TOY_START and TOY_DRAIN are the seconds that these take, TOY_FAIL makes start raise."""

import asyncio
import os

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Load, ModelInfo
from paceline.runtime.context import Context
from paceline.runtime.run import run


class Toy:
    """Does nothing, for a while."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def start(self) -> None:
        await asyncio.sleep(float(os.environ.get("TOY_START", "0")))
        if message := os.environ.get("TOY_FAIL"):
            raise InvalidRequest(message)

    def load(self) -> Load:
        return Load()

    def model(self) -> ModelInfo | None:
        return None

    async def drain(self) -> None:
        await asyncio.sleep(float(os.environ.get("TOY_DRAIN", "0")))

    async def close(self) -> None:
        return


if __name__ == "__main__":
    run("drafter", "a toy", Toy)
