"""What Prometheus sees: this gateway's requests, and every worker's load as its last beacon told it."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from paceline.contracts.messages import Beacon, Load, Role
from paceline.gateway.answer import Usage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ROLES: tuple[Role, ...] = ("gateway", "prefill", "decode", "kvstore", "drafter")
_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Alive(Protocol):
    """The part of a roster that metrics read."""

    def alive(self, role: Role) -> list[Beacon]: ...


def unsettled(load: Load) -> int:
    """Everything a service holds that must be zero when it is idle."""
    return load.running + load.waiting + load.queued_tokens + load.pages_used + load.leases + load.tasks


class Metrics:
    """One gateway's metrics, in a registry of their own."""

    def __init__(self, roster: Alive, worker: str, own_load: Callable[[], Load]) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "paceline_requests", "Requests for tokens by HTTP status", ["status"], registry=registry
        )
        self._prompt_tokens = Counter(
            "paceline_prompt_tokens", "Prompt tokens of answered requests", registry=registry
        )
        self._cached_tokens = Counter(
            "paceline_cached_tokens", "Prompt tokens whose KV was reused", ["tier"], registry=registry
        )
        self._completion_tokens = Counter(
            "paceline_completion_tokens", "Output tokens of answered requests", registry=registry
        )
        self.failovers = Counter(
            "paceline_failovers", "Attempts after the first one of a request", registry=registry
        )
        self.resends = Counter(
            "paceline_resends", "Times that a worker was asked to publish again", registry=registry
        )
        self.ttft = Times("paceline_ttft_seconds", "Arrival to first token", _TTFT_S)
        self.itl = Times("paceline_itl_seconds", "Time per token after the first", _ITL_S)
        registry.register(self.ttft)
        registry.register(self.itl)
        registry.register(_Workers(roster, worker, own_load))

    def answered(self, usage: Usage) -> None:
        """Count an answer that was given in full."""
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._completion_tokens.inc(usage.completion_tokens)
        self._cached_tokens.labels("device").inc(usage.cached.device)
        self._cached_tokens.labels("host").inc(usage.cached.host)

    def ended(self, status: int) -> None:
        """Count a request by what the client got; 499 if it went away."""
        self._requests.labels(str(status)).inc()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._registry)


class Times(Collector):
    """A histogram for one thread: prometheus-client's own locks twice and searches from the first bucket, which takes
    2 us, a tenth of what a token costs."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterable[Metric]:
        labels = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(labels, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum)


class _Workers(Collector):
    """Gauges made at scrape time, so that a worker that is gone leaves no stale value."""

    def __init__(self, roster: Alive, worker: str, own_load: Callable[[], Load]) -> None:
        self._roster = roster
        self._worker = worker
        self._own_load = own_load

    def collect(self) -> Iterable[Metric]:
        loads = dict(self._loads())
        labels = ["role", "worker"]
        for name in ("running", "waiting", "queued_tokens", "pages_used", "pages_cached", "leases", "tasks"):
            gauge = GaugeMetricFamily(f"paceline_worker_{name}", f"{name} in the last beacon", labels=labels)
            for key, load in loads.items():
                gauge.add_metric(key, getattr(load, name))
            yield gauge
        leaks = sum(map(unsettled, loads.values()))
        yield GaugeMetricFamily("paceline_leaks", "What must be zero when the mesh is idle", value=leaks)

    def _loads(self) -> Iterable[tuple[tuple[str, str], Load]]:
        for role in _ROLES:
            for beacon in self._roster.alive(role):
                yield (beacon.role, beacon.worker), beacon.load
        # Our own beacon is up to half a second old; this is not.
        yield ("gateway", self._worker), self._own_load()
