"""POST /client/v4/accounts/{id}/ai/run/{model}, as Workers AI's clients speak it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.gateway.answer import Head, Usage
from paceline.gateway.ask import Ask, JsonSchema
from paceline.gateway.deltas import Answer
from paceline.gateway.dialect import Renderer
from paceline.gateway.dialects import workers_ai_request
from paceline.gateway.dialects.workers_ai_answer import Lines, problem_body, whole_body
from paceline.gateway.errors import Problem


@dataclass(frozen=True, slots=True)
class SpokenRun:
    """A `Spoken`."""

    ask: Ask

    def renderer(self, head: Head) -> Renderer:
        return Lines()

    def whole(self, head: Head, answers: Sequence[Answer], usage: Usage) -> Any:
        return whole_body(answers[0], usage, as_json=isinstance(self.ask.shape, JsonSchema))


class Run:
    """A `Dialect`, for the one model that the path names: bodies do not."""

    name = "workers_ai"

    def __init__(self, model: str) -> None:
        self._model = model

    def parse(self, body: bytes, *, vocab: int) -> SpokenRun:
        return SpokenRun(workers_ai_request.parse(body, self._model))

    def problem(self, problem: Problem, request_id: str) -> Any:
        return problem_body(problem)
