"""Whether a model fits on some GPUs, and how many tokens beside it. Pure arithmetic."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from paceline.contracts.errors import InvalidRequest
from paceline.engine.layout import KvDtype, plan_layout
from paceline.model.config import ModelConfig
from paceline.planner.kv import KvCost, kv_cost
from paceline.planner.mix import Mix
from paceline.planner.model import Model
from paceline.planner.parallel import Parallel, of_stage
from paceline.planner.tensors import Tensor, with_mtp
from paceline.planner.units import GIB
from paceline.planner.weights import KindRow, by_kind, check_slices, local_bytes, whole_bytes
from paceline.planner.workspace import Step, Workspace, workspace

Role: TypeAlias = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to plan. Sizes are bytes per GPU.

    reserve: what is neither weights, workspace nor KV: the driver's context, buffers of collectives, CUDA graphs
    chunk: tokens of one step of prefill;  batch: sequences of one step of decode
    context: tokens of one sequence, None: as many as the model takes
    kv_pool: instead of the memory that is left
    mtp: with the layers for multi-token prediction, their weights and their KV
    """

    model: Model
    mix: Mix
    parallel: Parallel
    gpu_memory: int
    roles: tuple[Role, ...]
    kv: dict[Role, KvDtype]
    reserve: int = 5 * GIB // 2
    chunk: int = 8192
    batch: int = 256
    context: int | None = None
    kv_pool: int | None = None
    mtp: bool = False

    @property
    def whole_context(self) -> int:
        """Tokens of the longest sequence that is to be served."""
        return self.context or self.model.config.context


@dataclass(frozen=True, slots=True)
class Profile:
    """One role's memory on the GPU that holds the fewest tokens.

    weights, workspace, pool, left: bytes; the pool is what is left unless it was given, and `left` may be negative
    tokens_per_gpu: of the sequences on one GPU;  tokens: of all data-parallel ranks together
    longest: tokens of the longest single sequence
    fits: when it is as long as asked for, or takes a chunk of prefill
    """

    role: Role
    kv_dtype: KvDtype
    weights: int
    workspace: Workspace
    left: int
    pool: int
    kv: KvCost
    tokens_per_gpu: int
    tokens: int
    longest: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """weights_per_gpu: of the fullest stage.  kv: of the whole model, as if on one GPU, by role."""

    request: Request
    kinds: tuple[KindRow, ...]
    weights: int
    weights_per_gpu: int
    profiles: tuple[Profile, ...]
    whole_kv: dict[Role, KvCost]

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.kinds)

    @property
    def fits(self) -> bool:
        return all(profile.fits for profile in self.profiles)


def make(request: Request) -> Plan:
    """Raises `InvalidRequest` when the model cannot be cut, its KV not be stored or its context not be as asked."""
    parallel, context = request.parallel, request.model.config.context
    check_cut(request)
    if request.whole_context > context:
        raise InvalidRequest(f"--context {request.context} is more than the model's {context} tokens")
    served = request.model.served(mtp=request.mtp)
    held = _stage_tensors(request)
    per_gpu = [local_bytes(stage, request.mix, parallel) for stage in held]
    fullest = max(range(parallel.pp), key=per_gpu.__getitem__)
    whole = _with_mtp(request)
    return Plan(
        request,
        tuple(by_kind(served, held[fullest], request.mix, parallel)),
        sum(whole_bytes(tensor, request.mix) for tensor in served),
        per_gpu[fullest],
        tuple(_profile(request, role, per_gpu) for role in request.roles),
        {
            r: kv_cost(whole, plan_layout(whole, request.kv[r]), range(len(whole.layers)), 1)
            for r in request.roles
        },
    )


def check_cut(request: Request) -> None:
    """Raises `InvalidRequest` when the model cannot be cut as asked."""
    request.parallel.check(request.model.config)
    check_slices(request.model.served(mtp=request.mtp), request.mix, request.parallel)


def _stage_tensors(request: Request) -> list[list[Tensor]]:
    config = request.model.config
    stages = request.parallel.stages(len(config.layers))
    served = request.model.served(mtp=request.mtp)
    return [of_stage(served, i, stages, tied=config.tied_head) for i in range(len(stages))]


def _profile(request: Request, role: Role, per_gpu: list[int]) -> Profile:
    """Of the stage that holds the fewest tokens: they all hold the same ones, each for its layers."""
    config, parallel = _with_mtp(request), request.parallel
    context = request.whole_context
    space = workspace(config, parallel, _step(request, role, context))
    layout = plan_layout(config, request.kv[role])
    stages = (
        _stage(request, role, context, space, per_gpu[i], kv_cost(config, layout, layers, parallel.tp))
        for i, layers in enumerate(_kv_stages(request, len(config.layers)))
    )
    return min(stages, key=lambda profile: (profile.tokens, profile.pool))


def _stage(request: Request, role: Role, context: int, space: Workspace, weights: int, kv: KvCost) -> Profile:
    left = request.gpu_memory - request.reserve - weights - space.bytes
    pool = left if request.kv_pool is None else request.kv_pool
    tokens, longest = kv.tokens(pool, context), kv.longest(pool, context)
    enough = context if request.context else min(context, request.chunk)
    return Profile(
        role=role,
        kv_dtype=request.kv[role],
        weights=weights,
        workspace=space,
        left=left,
        pool=pool,
        kv=kv,
        tokens_per_gpu=tokens,
        tokens=tokens * request.parallel.dp,
        longest=longest,
        fits=pool <= left and longest >= enough,
    )


def _kv_stages(request: Request, layers: int) -> list[range]:
    """Layers by stage; the last has those for multi-token prediction."""
    stages = list(request.parallel.stages(len(request.model.config.layers)))
    stages[-1] = range(stages[-1].start, layers)
    return stages


def _with_mtp(request: Request) -> ModelConfig:
    return with_mtp(request.model.config, request.model.mtp_layers if request.mtp else 0)


def _step(request: Request, role: Role, context: int) -> Step:
    if role == "prefill":
        return Step(request.chunk, min(request.batch, request.chunk), context)
    return Step(request.batch, request.batch, context)
