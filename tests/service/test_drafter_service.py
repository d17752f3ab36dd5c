"""The drafter over the bus in memory."""

import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from paceline.bus import rpc
from paceline.bus.interface import Bus
from paceline.bus.memory import MemoryBroker
from paceline.contracts import messages as m
from paceline.contracts import subjects
from paceline.contracts.codec import encode
from paceline.contracts.errors import InvalidRequest
from paceline.drafter.service import DrafterService
from paceline.drafter.settings import Settings
from tests.helpers import close_context, make_context

DRAFTER = "drafter-1"
PHRASE = list(range(100, 140))


class Decode:
    """What a decode worker does with the drafter."""

    def __init__(self, bus: Bus, worker: str = "decode-1") -> None:
        self.bus = bus
        self.worker = worker

    async def open(
        self, tokens: list[int], *, request_id: str = "r", epoch: int = 1, tenant: str = "t"
    ) -> list[m.Drafted]:
        message = m.DraftOpen(
            worker=self.worker, request_id=request_id, epoch=epoch, tenant=tenant, tokens=tokens
        )
        return (await rpc.call(self.bus, subjects.DRAFT_OPEN, "drafter", DRAFTER, message)).drafts

    async def propose(
        self, *commits: m.DraftCommit, within_s: float = 60.0, max_tokens: int = 8
    ) -> list[m.Drafted]:
        message = m.Propose(
            worker=self.worker,
            deadline=time.time() + within_s,
            max_tokens=max_tokens,
            commits=list(commits),
        )
        return (await rpc.call(self.bus, subjects.DRAFT_PROPOSE, "drafter", DRAFTER, message)).drafts

    async def close(self, *, request_id: str = "r", epoch: int = 1) -> None:
        message = m.DraftClose(worker=self.worker, request_id=request_id, epoch=epoch)
        await rpc.call(self.bus, subjects.DRAFT_CLOSE, "drafter", DRAFTER, message)


def commit(base: int, tokens: list[int], *, request_id: str = "r", epoch: int = 1) -> m.DraftCommit:
    return m.DraftCommit(request_id=request_id, epoch=epoch, base=base, tokens=tokens)


def drafted(base: int, tokens: list[int], *, request_id: str = "r", epoch: int = 1) -> m.Drafted:
    chain = m.TokenTree(tokens=tokens, parents=list(range(-1, len(tokens) - 1)))
    return m.Drafted(request_id=request_id, epoch=epoch, base=base, proposal=chain if tokens else m.NoDraft())


@pytest.fixture
async def drafter(memory_broker: MemoryBroker) -> AsyncIterator[DrafterService]:
    context = await make_context(memory_broker.client(), "drafter", DRAFTER)
    service = DrafterService(context, Settings())
    await context.api.start()
    await service.start()
    yield service
    await service.close()
    await close_context(context)


@pytest.fixture
def decode(drafter: DrafterService, memory_broker: MemoryBroker) -> Decode:
    return Decode(memory_broker.client())


async def test_a_sequence_from_open_to_close(decode: Decode, drafter: DrafterService) -> None:
    assert await decode.open(PHRASE) == [drafted(40, [])]
    assert drafter.load().leases == 1
    assert await decode.propose(commit(40, PHRASE[:5])) == [drafted(45, PHRASE[5:10])]
    assert await decode.propose(commit(45, PHRASE[5:8])) == [drafted(48, PHRASE[8:16])]
    await decode.close()
    load = drafter.load()
    assert (load.leases, load.tasks) == (0, 0)
    assert load.counters == {"opened": 1, "proposed": 2, "proposed_tokens": 13, "committed": 8}


async def test_an_open_is_answered_with_a_draft_from_earlier_requests(decode: Decode) -> None:
    await decode.open(PHRASE, request_id="earlier")
    await decode.close(request_id="earlier")
    assert await decode.open([7, *PHRASE[:20]]) == [drafted(21, PHRASE[20:28])]


async def test_drafts_never_come_from_another_tenant(decode: Decode) -> None:
    await decode.open(PHRASE, request_id="theirs", tenant="them")
    assert await decode.open(PHRASE[:10], request_id="ours", tenant="us") == [
        drafted(10, [], request_id="ours")
    ]


async def test_each_commit_of_a_step_is_answered(decode: Decode) -> None:
    await decode.open(PHRASE, request_id="a")
    await decode.open([1, 2, 3], request_id="b", epoch=5)
    assert await decode.propose(
        commit(40, PHRASE[:4], request_id="a"),
        commit(3, [1, 2, 3], request_id="b", epoch=5),
        commit(9, [1], request_id="nobody"),
    ) == [
        drafted(44, PHRASE[4:8], request_id="a"),
        drafted(6, [1, 2, 3], request_id="b", epoch=5),
        drafted(9, [], request_id="nobody"),
    ]


async def test_a_commit_that_does_not_fit_is_answered_at_its_own_base_until_decode_opens_again(
    decode: Decode, drafter: DrafterService
) -> None:
    await decode.open(PHRASE)
    assert await decode.propose(commit(41, PHRASE[:5])) == [drafted(41, [])]
    assert drafter.load().leases == 0
    await decode.open(PHRASE, epoch=2)
    assert await decode.propose(commit(40, PHRASE[:5], epoch=2)) == [drafted(45, PHRASE[5:10], epoch=2)]
    assert await decode.propose(commit(45, PHRASE[5:8], epoch=1)) == [drafted(45, [], epoch=1)]
    assert drafter.load().leases == 1


async def test_after_the_deadline_commits_count_but_nothing_is_proposed(decode: Decode) -> None:
    await decode.open(PHRASE)
    assert await decode.propose(commit(40, PHRASE[:5]), within_s=-1.0) == []
    assert await decode.propose(commit(45, [])) == [drafted(45, PHRASE[5:10])]


async def test_a_proposal_has_at_most_the_tokens_that_are_asked_for_and_that_matched(decode: Decode) -> None:
    long = list(range(1000, 1100))
    await decode.open(long)
    (two,) = await decode.propose(commit(100, long[:30]), max_tokens=2)
    assert two == drafted(130, long[30:32])
    assert await decode.propose(commit(130, []), max_tokens=10**6) == [drafted(130, long[30:54])]
    assert await decode.propose(commit(130, []), max_tokens=-1) == [drafted(130, [])]


async def test_ids_that_are_no_tokens_are_refused(decode: Decode, drafter: DrafterService) -> None:
    with pytest.raises(InvalidRequest):
        await decode.open([2**40])
    assert drafter.load().leases == 0


async def test_the_sequences_of_a_lost_worker_are_closed(decode: Decode, drafter: DrafterService) -> None:
    other = Decode(decode.bus, "decode-2")
    await decode.open(PHRASE)
    await other.open(PHRASE)
    for state in ("ready", "gone"):
        fields = {
            "type": "beacon", "role": "decode", "worker": "decode-1", "incarnation": "life-1", "host": "h",
            "pid": 1, "state": state, "started": 1.0, "load": {},
        }  # fmt: skip
        beacon = msgspec.convert(fields, m.Beacon)
        await decode.bus.publish(subjects.beacon("decode", "decode-1"), encode(beacon))
    assert await other.propose(commit(40, PHRASE[:5])) == [drafted(45, PHRASE[5:10])]
    assert drafter.load().leases == 1
    assert await decode.propose(commit(40, [1])) == [drafted(40, [])]
