"""An answer in OpenAI's shape: the whole completion, and the usage of both kinds of answer."""

from dataclasses import dataclass, field
from typing import Any

from paceline.contracts.messages import CachedTokens, Done, FinishReason, Started, Timings


@dataclass(frozen=True, slots=True)
class Usage:
    """What one answer cost. `started` and `done` are the workers' own reports; `queue_s` was spent in the gateway."""

    prompt_tokens: int
    completion_tokens: int
    queue_s: float
    started: Started | None
    done: Done | None

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
        if drafted:
            body["completion_tokens_details"] = {
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


@dataclass(frozen=True, slots=True)
class Head:
    """What all parts of one answer have in common. `created` is in UNIX seconds."""

    request_id: str
    model: str
    created: int
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"chatcmpl-{self.request_id}")


def completion(head: Head, text: str, finish_reason: FinishReason, usage: Usage) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}],
        "usage": usage.body(),
    }


def models(name: str, created: int) -> dict[str, Any]:
    """The body of GET /v1/models."""
    model = {"id": name, "object": "model", "created": created, "owned_by": "paceline"}
    return {"object": "list", "data": [model]}
