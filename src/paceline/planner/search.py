"""Other ways to cut a model than the one that was asked for. Experts stay spread over all ranks where they are."""

from dataclasses import replace

from paceline.contracts.errors import InvalidRequest
from paceline.planner.parallel import Parallel
from paceline.planner.plan import Request, check_cut, make

_MOST_TP = 64


def fewest(request: Request) -> Parallel | None:
    """The smallest tensor parallelism on which the request fits, else as it is.

    Without a `context` it fits when it takes a chunk of prefill, however short that is.
    """
    for tp in range(1, _MOST_TP + 1):
        parallel = _with(request.parallel, tp, request.parallel.pp)
        if _fits(replace(request, parallel=parallel)):
            return parallel
    return None


def less_tensor_parallel(request: Request) -> Parallel | None:
    """As many GPUs with the most tensor parallelism below the request's that cuts the model, the rest pipeline stages.

    None when there is no such way; memory is not looked at.
    """
    asked = request.parallel
    for tp in range(asked.tp - 1, 0, -1):
        if asked.tp % tp == 0:
            parallel = _with(asked, tp, asked.pp * (asked.tp // tp))
            if _can_be_cut(replace(request, parallel=parallel)):
                return parallel
    return None


def _with(parallel: Parallel, tp: int, pp: int) -> Parallel:
    return replace(parallel, tp=tp, pp=pp, ep=tp * parallel.dp if parallel.ep > 1 else 1)


def _fits(request: Request) -> bool:
    try:
        return make(request).fits
    except InvalidRequest:  # it cannot be cut so
        return False


def _can_be_cut(request: Request) -> bool:
    try:
        check_cut(request)
    except InvalidRequest:
        return False
    return True
