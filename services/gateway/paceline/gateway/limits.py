"""How much a tenant may ask for in a minute, on this gateway. Pure: the caller brings the time."""

import math
from dataclasses import dataclass

from paceline.contracts.errors import Busy

_MINUTE_S = 60.0
_HAIR = 1e-6


@dataclass(frozen=True, slots=True)
class Quota:
    """Requests and tokens per minute; None is no limit. Tokens are those of prompts and of answers."""

    requests: int | None = None
    tokens: int | None = None


UNLIMITED = Quota()


class Bucket:
    """A token bucket that holds `limit` and refills in a minute. It can be overdrawn: an answer's length is known when
    it is over."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at = now

    def missing_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` can be taken, 0 if it can now. More than it ever holds counts as all that it holds."""
        self._refill(now)
        lacking = min(amount, self.limit) - self._level
        # What refills in parts is a hair less than what was taken.
        return lacking * _MINUTE_S / self.limit if lacking > _HAIR else 0.0

    def take(self, amount: float) -> None:
        self._level -= amount

    def remaining(self, now: float) -> int:
        self._refill(now)
        return max(0, math.floor(self._level))

    def full_s(self, now: float) -> float:
        """Seconds until nothing is missing."""
        self._refill(now)
        return (self.limit - self._level) * _MINUTE_S / self.limit

    def _refill(self, now: float) -> None:
        self._level = min(self.limit, self._level + (now - self._at) * self.limit / _MINUTE_S)
        self._at = now


class Meter:
    """One tenant's requests and tokens."""

    def __init__(self, quota: Quota, now: float) -> None:
        self._requests = None if quota.requests is None else Bucket(quota.requests, now)
        self._tokens = None if quota.tokens is None else Bucket(quota.tokens, now)

    def take_request(self, now: float) -> None:
        """Count a request, before its body is read. Raises `Busy`."""
        if self._tokens is not None and (wait := self._tokens.missing_s(1, now)):
            raise _exceeded("tokens", self._tokens.limit, wait)
        if self._requests is not None:
            if wait := self._requests.missing_s(1, now):
                raise _exceeded("requests", self._requests.limit, wait)
            self._requests.take(1)

    def take_prompt(self, tokens: int, now: float) -> None:
        """Count the tokens of a prompt, before it is run. Raises `Busy`."""
        if self._tokens is not None:
            if wait := self._tokens.missing_s(tokens, now):
                raise _exceeded("tokens", self._tokens.limit, wait)
            self._tokens.take(tokens)

    def take_answer(self, tokens: int) -> None:
        """Count the tokens of an answer, which have been generated already."""
        if self._tokens is not None:
            self._tokens.take(tokens)

    def headers(self, now: float) -> dict[str, str]:
        """What OpenAI's responses say of limits; nothing where there is none."""
        headers = {}
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(bucket.remaining(now))
                headers[f"x-ratelimit-reset-{name}"] = f"{bucket.full_s(now):.3f}s"
        return headers


class Limits:
    """The meters of all tenants."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}

    def meter(self, tenant: str, quota: Quota, now: float) -> Meter:
        if (meter := self._meters.get(tenant)) is None:
            meter = self._meters[tenant] = Meter(quota, now)
        return meter


def _exceeded(what: str, limit: int, wait_s: float) -> Busy:
    return Busy(
        f"Rate limit reached: {limit} {what} per minute. Please try again in {wait_s:.3f}s.",
        retry_after_s=wait_s,
    )
