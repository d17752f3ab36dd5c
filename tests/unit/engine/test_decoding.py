"""A step that is carried on is the step that would be made anew."""

import random
from dataclasses import fields

import numpy as np
import pytest

from paceline.contracts.messages import TokenTree
from paceline.engine.layout import PageGroup
from paceline.engine.plan import Plan, build_plan
from paceline.engine.sampling import sample
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.tables import PageTables
from paceline.model.config import Window
from tests.builders import logits_of, make_scheduler, make_sequence, run


def check(plan: Plan) -> None:
    """The plan's arrays say where its sequences are now."""
    step = plan.step
    anew = build_plan(plan.entries, plan.filling, PageTables(len(step.page_table)))
    for field in fields(step):
        assert np.array_equal(getattr(step, field.name), getattr(anew.step, field.name)), field.name
        assert getattr(step, field.name).dtype == getattr(anew.step, field.name).dtype
    assert np.array_equal(plan.tags, anew.tags)
    assert plan.samplings == anew.samplings


def turn(scheduler: Scheduler) -> Plan | None:
    plan = scheduler.schedule(0.0)
    if plan is None:
        return None
    check(plan)
    assert scheduler.check(plan) == []
    scheduler.commit(plan, logits_of(plan), lambda row, s, at: sample(row, s.sampling, at, None), 0.01)
    return plan


def test_decoding_goes_on_with_the_same_arrays_until_a_page_is_full() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(60, output=20, name="a"))
    scheduler.add(make_sequence([1] * 10, output=20, name="b", arrival=1.0))
    plans = [turn(scheduler) for _ in range(8)]
    steps = [plan.step for plan in plans if plan is not None]
    # The prompts; positions 60 to 63; then "a" takes another page.
    assert [step is steps[1] for step in steps] == [False, True, True, True, True, False, False, False]
    assert steps[5] is steps[7]
    assert steps[5].positions.tolist() == [66, 16]


def test_a_step_that_was_not_committed_is_not_gone_on_with() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence([1], output=20))
    run(scheduler)
    for _ in range(3):
        plan = scheduler.schedule(0.0)
        assert plan is not None
        assert plan.step.positions.tolist() == [1]


@pytest.mark.parametrize("groups", [(PageGroup(()),), (PageGroup(()), PageGroup((), Window(40)))])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_between_steps(groups: tuple[PageGroup, ...], seed: int) -> None:
    """Sequences come, leave, end, are handed over and get drafts; every step is as if made anew."""
    chance = random.Random(seed)
    scheduler = make_scheduler(pages=40, groups=groups, step_tokens=64, sequences=6)
    living: list[Sequence] = []
    carried, last = 0, None
    for i in range(400):
        living = [s for s in living if s.finish_reason is None]
        match chance.randrange(40):
            case 0 | 1 if len(living) < 6:
                prompt = [chance.randrange(1000) for _ in range(chance.randint(1, 100))]
                remote = chance.random() < 0.3
                living.append(
                    make_sequence(prompt, output=chance.randint(1, 90), name=str(i), arrival=i, remote=remote,
                                  groups=len(groups))
                )  # fmt: skip
                scheduler.add(living[-1])
            case 2 if living:
                scheduler.abort(living.pop(chance.randrange(len(living))))
            case 3 if living:
                sequence = chance.choice(living)
                scheduler.offer(sequence, len(sequence.tokens), TokenTree(tokens=[1, 2], parents=[-1, 0]))
        plan = turn(scheduler)
        if plan is None:
            continue
        carried += plan is last
        last = plan
        for sequence in plan.filling:
            scheduler.join(sequence, 7)
    assert carried > 50 or len(groups) > 1
    for sequence in living:
        scheduler.abort(sequence)
    assert scheduler.pool.used == 0
