"""An answer for nobody who waits on a connection: batches and other queued work."""

import time
from dataclasses import replace
from typing import Any

import structlog

from paceline.contracts.errors import PacelineError
from paceline.gateway.answer import Head, total
from paceline.gateway.auth import Tenant
from paceline.gateway.dialect import Dialect
from paceline.gateway.errors import Rejected, internal, problem_of
from paceline.gateway.exchange import in_order
from paceline.gateway.front import Front
from paceline.gateway.generation import Generation, collect
from paceline.gateway.intake import make_choices

log = structlog.get_logger(__name__)


async def answer(
    front: Front, dialect: Dialect, body: bytes, tenant: Tenant, request_id: str, deadline: float
) -> tuple[int, Any]:
    """The status and JSON body that a client would have got, streaming aside. `deadline` is in UNIX seconds.

    Waits for its turn among requests that came over HTTP, and is of low priority behind them. Raises nothing but a
    cancellation.
    """
    try:
        return 200, await _answer(front, dialect, body, tenant, request_id, deadline)
    except Rejected as e:
        problem = e.problem
    except PacelineError as e:
        problem = problem_of(e)
    except Exception:
        log.exception("offline_answer_crashed", request_id=request_id)
        problem = internal()
    return problem.status, dialect.problem(problem, request_id)


async def _answer(
    front: Front, dialect: Dialect, body: bytes, tenant: Tenant, request_id: str, deadline: float
) -> Any:
    arrived = time.monotonic()
    language = front.language()
    with front.admission.enter() as ticket:
        spoken = await language.parse(dialect, body)
        ask = replace(spoken.ask, low_priority=True)
        choices = await make_choices(front, language, ask, {}, tenant, request_id, deadline)
        await front.admission.run(ticket)
        queue_s = time.monotonic() - arrived
        generations = [
            Generation(front, language, ask, choice, arrived=arrived, queue_s=queue_s) for choice in choices
        ]
        answers = await in_order(generations, collect)
        usage = front.priced(total([generation.usage() for generation in generations]))
        front.metrics.answered(usage)
        return spoken.whole(Head(request_id, front.model, int(time.time())), answers, usage)
