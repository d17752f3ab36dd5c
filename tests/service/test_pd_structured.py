"""Grammars and log probabilities through prefill and decode workers on the fake engine, whose tokens are bytes."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.bus import rpc
from paceline.bus.interface import Delivery
from paceline.bus.memory import MemoryBroker
from paceline.contracts import subjects
from paceline.contracts.frames import Logprobs, Tokens, decode_frame, is_frame
from paceline.contracts.messages import CachedTokens, Done, Failed, Resend
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from tests.helpers import until
from tests.workers import Answer, Mesh, make_work, mesh

PROMPT = [i % 200 + 1 for i in range(150)]
PATTERN = r"[a-c]{2,9}-(left|lower)[0-9]{4}"
GRAMMAR = json.dumps({"grammars": [{"lark_grammar": f"start: /{PATTERN}/"}]})
WAYS = pytest.mark.parametrize("remote", [True, False], ids=["prefill", "unified"])


def text(answer: Answer) -> str:
    return bytes(answer.all()).decode()


async def expected(m: Mesh, **sampling: Any) -> Answer:
    return await m.finish(
        make_work(PROMPT, max_tokens=40, sampling={"grammar": GRAMMAR, **sampling}), remote=False
    )


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 2.0, "seed": 5}, {"temperature": 2.0, "seed": 5, "presence_penalty": 1.0}],
)
async def test_the_answer_is_of_the_grammar_whoever_gives_it(
    memory_broker: MemoryBroker, tmp_path: Path, sampling: dict[str, float]
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        unified = await expected(m, **sampling)
        apart = await m.finish(make_work(PROMPT, max_tokens=40, sampling={"grammar": GRAMMAR, **sampling}))
        assert apart.all() == unified.all()
        assert re.fullmatch(PATTERN, text(apart))
        for answer in (unified, apart):
            assert isinstance(answer.end, Done)
            assert answer.end.finish_reason == "stop"
            assert answer.end.accepted > 0
        await m.idle()


async def test_the_first_token_may_be_all_that_the_grammar_allows(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    grammar = json.dumps({"grammars": [{"lark_grammar": 'start: "x"'}]})
    async with mesh(memory_broker, tmp_path) as m:
        answer = await m.finish(make_work(PROMPT, sampling={"grammar": grammar}))
        assert text(answer) == "x"
        assert isinstance(answer.end, Done)
        assert (answer.end.finish_reason, answer.end.worker) == ("stop", m.prefill.context.identity.worker)
        await m.idle()


@WAYS
@pytest.mark.parametrize("said", [1, 5, 10])
async def test_a_later_attempt_goes_on_within_the_grammar(
    memory_broker: MemoryBroker, tmp_path: Path, remote: bool, said: int
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        whole = (await expected(m)).all()
        work = make_work(PROMPT, max_tokens=40, attempt=2, output=whole[:said], sampling={"grammar": GRAMMAR})
        answer = await m.finish(work, remote=remote)
        assert [answer.tokens[i] for i in range(said, len(whole))] == whole[said:]
        await m.idle()


@WAYS
@pytest.mark.parametrize(
    ("grammar", "output"),
    [('{"grammars":[{"json_schema":{"type":"foo"}}]}', []), (GRAMMAR, [7])],
    ids=["no grammar", "not of the grammar"],
)
async def test_what_cannot_be_compiled_or_gone_on_with_is_the_requests_fault(
    memory_broker: MemoryBroker, tmp_path: Path, remote: bool, grammar: str, output: list[int]
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        ends: list[Failed] = []

        def hear(delivery: Delivery) -> None:
            if not is_frame(delivery.data) and isinstance(
                event := subjects.decode_event(delivery.data), Failed
            ):
                ends.append(event)

        await m.bus.subscribe(subjects.events("gw-other"), hear)
        work = make_work(PROMPT, output=output, attempt=2, sampling={"grammar": grammar})
        await m.ask(msgspec.structs.replace(work, gateway="gw-other"), remote=remote)
        await until(lambda: len(ends) == 1 + remote)
        assert {end.code for end in ends} == {"invalid_request"}
        assert all("grammar" in end.message for end in ends)
        await m.idle()
        assert (await m.finish(make_work(PROMPT), remote=remote)).end is not None
        await m.idle()


async def test_a_small_pool_preempts_constrained_sequences_too(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    grammar = json.dumps({"grammars": [{"lark_grammar": "start: /[ab]{150}!/"}]})
    async with mesh(memory_broker, tmp_path, pages=8) as m:
        works = [
            make_work(
                [i + 1] * 70, max_tokens=200, sampling={"grammar": grammar, "temperature": 1.0, "seed": i}
            )
            for i in range(3)
        ]
        answers = [await m.ask(work, remote=False) for work in works]
        await until(lambda: all(answer.end is not None for answer in answers))
        for answer in answers:
            assert re.fullmatch("[ab]{150}!", text(answer))
        await m.idle()


def _entries(m: Mesh, request_id: str) -> list[Tokens]:
    return [e for frame in m.frames for e in decode_frame(frame) if e.request_id == request_id]


@WAYS
async def test_log_probabilities_travel_with_tokens_and_again_when_asked(
    memory_broker: MemoryBroker, tmp_path: Path, remote: bool
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        plain = await m.finish(make_work(PROMPT, max_tokens=6), remote=remote)
        work = make_work(PROMPT, max_tokens=6, sampling={"logprobs": 2})
        answer = await m.finish(work, remote=remote)
        assert answer.all() == plain.all()
        sent = _entries(m, work.request_id)
        found = [logprobs for entry in sent for logprobs in entry.logprobs]
        assert len(found) == 6
        for token, logprobs in zip(answer.all(), found, strict=True):
            # Greedy: the likeliest token is the one that was chosen, by one in the logits.
            assert logprobs.top[0] == (token, logprobs.logprob)
            assert logprobs.logprob - logprobs.top[1][1] == pytest.approx(1.0, abs=1e-6)
        m.frames.clear()
        worker = m.decode.context.identity.worker
        resend = Resend(request_id=work.request_id, attempt=1, index=3)
        await rpc.call(m.bus, subjects.RESEND, "decode", worker, resend)
        await until(lambda: bool(m.frames))
        (again,) = _entries(m, work.request_id)
        assert (again.index, again.tokens) == (3, tuple(answer.all()[3:]))
        assert list(again.logprobs) == found[3:]
        await m.idle()


async def test_a_long_answer_is_sent_again_in_pieces(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.worker.outbox.MAX_PIECE", 3)
    async with mesh(memory_broker, tmp_path) as m:
        work = make_work(PROMPT, max_tokens=8, sampling={"logprobs": 1})
        answer = await m.finish(work, remote=False)
        m.frames.clear()
        resend = Resend(request_id=work.request_id, attempt=1, index=1)
        await rpc.call(m.bus, subjects.RESEND, "decode", m.decode.context.identity.worker, resend)
        await until(lambda: len(m.frames) == 3)
        pieces = _entries(m, work.request_id)
        assert [piece.index for piece in pieces] == [1, 4, 7]
        assert [token for piece in pieces for token in piece.tokens] == answer.all()[1:]
        assert [len(piece.logprobs) for piece in pieces] == [3, 3, 1]
        await m.idle()


async def test_a_prompts_log_probabilities_come_before_its_first_token(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path, kvstore=True) as m:
        await until(lambda: bool(m.decode.context.roster.alive("kvstore")))
        plain = await m.finish(make_work(PROMPT), remote=False)
        assert plain.started.prompt_logprobs == []
        scored = await m.finish(make_work(PROMPT, sampling={"prompt_logprobs": 1}), remote=False)
        assert scored.all() == plain.all()
        # Everything was computed, though all of it is cached.
        assert scored.started.cached == CachedTokens()
        found: list[Logprobs] = scored.started.prompt_logprobs
        assert len(found) == len(PROMPT) - 1
        for i, logprobs in enumerate(found):
            ((likeliest, best),) = logprobs.top
            assert logprobs.logprob <= best
            assert (logprobs.logprob == best) == (likeliest == PROMPT[i + 1])
        # The last but one is of the row that, alone, is the prompt's end.
        shorter = await m.finish(make_work(PROMPT[:-1], max_tokens=1), remote=False)
        assert found[-1].top[0][0] == shorter.all()[0]
        await m.idle()


async def test_low_priority_reaches_the_scheduler(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[Sequence] = []
    add = Scheduler.add

    def spy(self: Scheduler, sequence: Sequence) -> None:
        added.append(sequence)
        add(self, sequence)

    monkeypatch.setattr(Scheduler, "add", spy)
    async with mesh(memory_broker, tmp_path) as m:
        await m.finish(make_work(PROMPT, low_priority=True))
        await m.finish(make_work(PROMPT))
        assert [s.low_priority for s in added] == [True, True, False, False]
        await m.idle()
