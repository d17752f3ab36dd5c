"""POST /v1/messages, as Anthropic's clients speak it. Bodies of count_tokens: `anthropic_request.parse_count`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.gateway.answer import Head, Usage
from paceline.gateway.ask import Ask
from paceline.gateway.deltas import Answer
from paceline.gateway.dialect import Dialect, Renderer
from paceline.gateway.dialects.anthropic_answer import whole_message
from paceline.gateway.dialects.anthropic_errors import problem_body
from paceline.gateway.dialects.anthropic_request import parse_messages
from paceline.gateway.dialects.anthropic_stream import Events
from paceline.gateway.errors import Problem


@dataclass(frozen=True, slots=True)
class SpokenMessages:
    """A `Spoken`."""

    ask: Ask

    def renderer(self, head: Head) -> Renderer:
        return Events(head)

    def whole(self, head: Head, answers: Sequence[Answer], usage: Usage) -> Any:
        return whole_message(head, answers[0], usage)


class Messages:
    """A `Dialect`."""

    name = "messages"

    def parse(self, body: bytes, *, vocab: int) -> SpokenMessages:
        return SpokenMessages(parse_messages(body))

    def problem(self, problem: Problem, request_id: str) -> Any:
        return problem_body(problem, request_id)


MESSAGES: Dialect = Messages()
