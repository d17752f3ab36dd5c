"""Sequences, pools and schedulers with defaults, and a model whose logits are scripted."""

from collections.abc import Sequence as Tokens

import numpy as np

from paceline.contracts.hashing import tenant_salt
from paceline.contracts.messages import Sampling
from paceline.engine.layout import PageGroup
from paceline.engine.pages import PagePool, PageTags
from paceline.engine.plan import Plan, StepResult
from paceline.engine.sampling import sample
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.step import Float32

VOCAB = 1000
SALT = tenant_salt("a")


def make_pool(pages: int = 16) -> PagePool:
    return PagePool(pages, PageTags(np.zeros(pages, dtype=np.uint64)))


def make_scheduler(
    pages: int = 16,
    step_tokens: int = 256,
    sequences: int = 8,
    context: int = 4096,
    groups: Tokens[PageGroup] = (PageGroup(()),),
) -> Scheduler:
    limits = Limits(step_tokens, sequences)
    return Scheduler(make_pool(pages), groups, vocab=VOCAB, context=context, limits=limits)


def make_sequence(
    prompt: int | Tokens[int],
    *,
    output: int = 8,
    name: str = "r",
    arrival: float = 0.0,
    remote: bool = False,
    hold: bool = False,
    early: bool = False,
    stop: frozenset[int] = frozenset(),
    sampling: Sampling | None = None,
    salt: bytes = SALT,
    groups: int = 1,
) -> Sequence:
    tokens = list(range(prompt)) if isinstance(prompt, int) else list(prompt)
    return Sequence(
        request_id=name,
        attempt=1,
        tokens=tokens,
        prompt_tokens=len(tokens),
        sampling=sampling or Sampling(max_tokens=output, temperature=0.0),
        salt=salt,
        limit=len(tokens) + output,
        stop=stop,
        arrival=arrival,
        remote=remote,
        hold=hold,
        groups=groups,
        early=early,
    )


def successor(token: int) -> int:
    """The scripted model: what follows a token, whatever came before."""
    return (token * 7 + 1) % VOCAB


def logits_of(plan: Plan) -> Float32:
    rows = np.zeros((len(plan.step.logit_rows), VOCAB), dtype=np.float32)
    for i, row in enumerate(plan.step.logit_rows):
        rows[i, successor(int(plan.step.tokens[row]))] = 1.0
    return rows


def run(scheduler: Scheduler, now: float = 0.0) -> tuple[Plan, StepResult]:
    """One whole step of the scripted model."""
    plan = scheduler.schedule(now)
    assert plan is not None
    assert scheduler.check(plan) == []
    result = scheduler.commit(
        plan, logits_of(plan), lambda row, s, position: sample(row, s.sampling, position, s.adjustments), 0.01
    )
    return plan, result
