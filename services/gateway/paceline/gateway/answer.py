"""What all dialects tell of an answer: who gave it, and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.contracts.messages import CachedTokens, Done, Started, Timings


@dataclass(frozen=True, slots=True)
class Usage:
    """What one answer cost. `started` and `done` are the workers' own reports; `queue_s` was spent in the gateway;
    `cost` is money, where prices are set."""

    prompt_tokens: int
    completion_tokens: int
    queue_s: float
    started: Started | None
    done: Done | None
    reasoning_tokens: int = 0
    cost: float | None = None

    @property
    def cached(self) -> CachedTokens:
        """Prompt tokens that were reused, as far as a worker said so."""
        return self.started.cached if self.started else CachedTokens()

    def body(self) -> dict[str, Any]:
        """OpenAI's usage object, and under `paceline` where the time went (seconds) and what was reused."""
        cached = self.cached
        body: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached.total},
        }
        drafted, accepted = (self.done.drafted, self.done.accepted) if self.done else (0, 0)
        body["completion_tokens_details"] = {
            "reasoning_tokens": self.reasoning_tokens,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
        body["paceline"] = {
            "cached": {"device": cached.device, "host": cached.host},
            "drafted": drafted,
            "accepted": accepted,
            "stages": self._stages(),
            "workers": {
                "prompt": self.started.worker if self.started else None,
                "decode": self.done.worker if self.done else None,
            },
        }
        if self.cost is not None:
            body["paceline"]["cost"] = self.cost
        return body

    def _stages(self) -> dict[str, float]:
        timings = self.started.timings if self.started else Timings()
        steps = self.done.steps if self.done else 0
        return {
            "queue": self.queue_s + timings.queue,
            "store": timings.store,
            "prefill": timings.compute,
            "handoff": self.done.handoff if self.done else 0.0,
            "decode_step": self.done.compute / steps if self.done and steps else 0.0,
        }


def total(parts: Sequence[Usage]) -> Usage:
    """Of several answers to one request. Stages and workers are those of the first."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    cached = [part.cached for part in parts]
    done = [part.done for part in parts if part.done]
    return Usage(
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
        queue_s=first.queue_s,
        started=first.started
        and msgspec.structs.replace(
            first.started,
            cached=CachedTokens(device=sum(c.device for c in cached), host=sum(c.host for c in cached)),
        ),
        done=first.done
        and msgspec.structs.replace(
            first.done, drafted=sum(d.drafted for d in done), accepted=sum(d.accepted for d in done)
        ),
        reasoning_tokens=sum(part.reasoning_tokens for part in parts),
    )


@dataclass(frozen=True, slots=True)
class Head:
    """What all parts of one answer have in common. `created` is in UNIX seconds."""

    request_id: str
    model: str
    created: int


def models(name: str, created: int) -> dict[str, Any]:
    """The body of GET /v1/models."""
    model = {"id": name, "object": "model", "created": created, "owned_by": "paceline"}
    return {"object": "list", "data": [model]}
