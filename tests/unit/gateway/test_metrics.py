"""What a scrape shows."""

from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paceline.contracts.messages import Beacon, CachedTokens, Load, Role, Started, Timings
from paceline.gateway.answer import Usage
from paceline.gateway.metrics import Metrics, Times
from tests.unit.gateway.builders import make_beacon


@dataclass
class Roster:
    beacons: list[Beacon]

    def alive(self, role: Role) -> list[Beacon]:
        return [b for b in self.beacons if b.role == role]


def scrape(metrics: Metrics) -> dict[str, float]:
    """Samples as `name{label,...}`."""
    return {
        f"{s.name}{{{','.join(s.labels.values())}}}": s.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for s in family.samples
    }


def test_leaks_are_the_sum_of_what_must_be_zero_in_the_whole_mesh() -> None:
    prefill = make_beacon(
        "prefill", "p", load=Load(running=1, pages_used=2, pages_cached=99, pages_total=100)
    )
    store = make_beacon("kvstore", "k", load=Load(leases=4, queued_tokens=8))
    stale_own = make_beacon("gateway", "g", load=Load(running=50))
    samples = scrape(Metrics(Roster([prefill, store, stale_own]), "g", lambda: Load(waiting=16, tasks=32)))
    assert samples["paceline_leaks{}"] == 1 + 2 + 4 + 8 + 16 + 32
    assert samples["paceline_worker_pages_used{prefill,p}"] == 2
    assert samples["paceline_worker_running{gateway,g}"] == 0
    assert samples["paceline_worker_waiting{gateway,g}"] == 16


def test_a_worker_that_left_is_not_shown_any_more() -> None:
    roster = Roster([make_beacon("decode", "d")])
    metrics = Metrics(roster, "g", Load)
    assert "paceline_worker_tasks{decode,d}" in scrape(metrics)
    roster.beacons.clear()
    assert "paceline_worker_tasks{decode,d}" not in scrape(metrics)


def test_answers_and_ends_are_counted() -> None:
    metrics = Metrics(Roster([]), "g", Load)
    cached = CachedTokens(device=64, host=128)
    started = Started(request_id="ab", attempt=1, worker="p", cached=cached, timings=Timings())
    metrics.answered(Usage(200, 7, 0.0, started, None))
    metrics.answered(Usage(1, 1, 0.0, None, None))
    metrics.ended(200)
    metrics.ended(499)
    metrics.ended(200)
    samples = scrape(metrics)
    assert samples["paceline_prompt_tokens_total{}"] == 201
    assert samples["paceline_completion_tokens_total{}"] == 8
    assert samples["paceline_cached_tokens_total{device}"] == 64
    assert samples["paceline_cached_tokens_total{host}"] == 128
    assert samples["paceline_requests_total{200}"] == 2
    assert samples["paceline_requests_total{499}"] == 1


@pytest.mark.parametrize("seconds", [[], [0.0, 0.01, 0.011, 0.25, 0.3, 7.0]])
def test_times_look_like_the_librarys_own(seconds: list[float]) -> None:
    bounds = (0.01, 0.25, 5)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    times = Times("t_seconds", "Some times", bounds)
    ours.register(times)
    histogram = Histogram("t_seconds", "Some times", buckets=bounds, registry=theirs)
    for value in seconds:
        times.observe(value)
        histogram.observe(value)
    created = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert generate_latest(ours).splitlines() == created
