"""Agents and SDKs as their users run them, against a mesh of real processes."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from paceline.contracts.hashing import PAGE_TOKENS
from tests.clients import cases
from tests.clients.cases import Case, prompt
from tests.clients.clients import CLIENTS, Client, Outcome, Ride, run
from tests.clients.installed import Installed
from tests.clients.proxy import Exchange, Proxy

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)]

Drive: TypeAlias = Callable[..., Awaitable[Outcome]]

_SHORT = 40


@pytest.fixture
def drive(client: Client, installed: Installed, home: Path, project: Path, proxy: Proxy) -> Drive:
    """One run of the client with the prompt of a case."""

    async def drive(case: Case, *, resume: bool = False, limit: int | None = None) -> Outcome:
        if case in client.missing:
            pytest.skip(client.missing[case])
        ride = Ride(proxy.url, home, project, prompt(client.name, case), resume, limit)
        return await run(client, ride, installed)

    return drive


async def test_an_answer_after_429_and_503(drive: Drive, proxy: Proxy) -> None:
    proxy.faults.extend((429, 503))
    outcome = await drive("text")
    assert (outcome.status, [e.status for e in proxy.exchanges[:3]]) == (0, [429, 503, 200]), outcome.output
    assert cases.TEXT in outcome.output


async def test_a_tool_loop_and_a_second_turn_from_the_cache(drive: Drive, proxy: Proxy) -> None:
    outcome = await drive("tool")
    assert outcome.status == 0, outcome.output
    assert cases.AFTER_TOOL in outcome.output
    first, last = proxy.answers[-2:]
    assert cases.ATTACK in _said_to(last)
    _assert_cached(last, first)
    outcome = await drive("again", resume=True)
    assert outcome.status == 0, outcome.output
    assert cases.AGAIN in outcome.output
    _assert_cached(proxy.answers[-1], last)


async def test_two_calls_in_one_answer(drive: Drive, proxy: Proxy) -> None:
    outcome = await drive("parallel")
    assert outcome.status == 0, outcome.output
    assert cases.AFTER_PARALLEL in outcome.output
    said = _said_to(proxy.answers[-1])
    assert cases.DUO in said
    assert cases.TRIO in said


async def test_reasoning_is_no_text(drive: Drive, proxy: Proxy) -> None:
    outcome = await drive("reasoning")
    assert outcome.status == 0, outcome.output
    assert cases.REASONED in outcome.output
    assert "think>" not in outcome.output
    assert "think>" not in proxy.answers[-1].body.decode()


async def test_a_call_that_the_limit_cuts_short_is_not_made(
    drive: Drive, proxy: Proxy, project: Path
) -> None:
    outcome = await drive("length", limit=_SHORT)
    assert outcome.status is not None, outcome.output
    assert proxy.answers[0].cut_short
    assert not (project / cases.CROSSED).exists()


async def test_an_answer_that_breaks_off_is_no_answer(drive: Drive, proxy: Proxy) -> None:
    outcome = await drive("error")
    if outcome.status != 0:
        # A client that does not ask again by itself says that there was an error.
        assert "error" in outcome.output.lower()
        outcome = await drive("error")
    assert outcome.status == 0, outcome.output
    assert cases.BROKEN in outcome.output
    assert [e.failed for e in proxy.exchanges] == [True, *[False] * (len(proxy.exchanges) - 1)]


def _assert_cached(later: Exchange, earlier: Exchange) -> None:
    """Of the later prompt all that the earlier one had in common with it, but for its last page."""
    assert earlier.prompt > PAGE_TOKENS
    assert later.cached >= earlier.prompt - 2 * PAGE_TOKENS


def _said_to(exchange: Exchange) -> str:
    return repr(exchange.request)
