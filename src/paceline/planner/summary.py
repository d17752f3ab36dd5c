"""A plan as a record for programs."""

from dataclasses import dataclass, replace

from paceline.planner.assumptions import assumptions
from paceline.planner.plan import Plan, Profile
from paceline.planner.search import fewest


@dataclass(frozen=True, slots=True)
class RoleSummary:
    """Of the GPU that holds the fewest tokens; sizes in bytes."""

    role: str
    kv_dtype: str
    workspace_bytes: int
    kv_pool_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_token_per_gpu: int
    kv_tokens: int
    kv_tokens_per_gpu: int
    longest_sequence: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """Sizes in bytes. The `kv` fields are those of decode, or of prefill when only that was asked for.

    kv_bytes_per_token: in all layers that keep everything: what one more token of a long sequence costs
    kv_bytes_per_token_within_spans: in all layers, before those with a span begin to forget
    kv_capped_bytes: what the layers with a span hold of one long sequence
    longest_sequence: of the role that holds the shorter one, in tokens
    context: tokens of a sequence, as asked for, else as many as the model takes
    minimum_gpus: with this pipeline and data parallelism; None when no tensor parallelism is enough
    minimum_gpus_for_context: the same, for a sequence of `context` tokens
    """

    model: str
    source: str
    weights: str
    parameters: int
    gpus: int
    tp: int
    pp: int
    ep: int
    dp: int
    gpu_memory_bytes: int
    reserve_bytes: int
    weights_bytes: int
    weights_bytes_per_gpu: int
    stored_bytes: int | None
    kv_bytes_per_token: int
    kv_bytes_per_token_within_spans: int
    kv_capped_bytes: int
    kv_tokens: int
    kv_tokens_per_gpu: int
    longest_sequence: int
    context: int
    fits: bool
    minimum_gpus: int | None
    minimum_gpus_for_context: int | None
    roles: tuple[RoleSummary, ...]
    assumptions: tuple[str, ...]


def summarise(plan: Plan) -> Summary:
    request, last = plan.request, plan.profiles[-1]
    whole = plan.whole_kv[last.role]
    least = fewest(request)
    whole_context = fewest(replace(request, context=request.whole_context))
    return Summary(
        model=request.model.name,
        source=request.model.source,
        weights=request.mix.name,
        parameters=plan.parameters,
        gpus=request.parallel.gpus,
        tp=request.parallel.tp,
        pp=request.parallel.pp,
        ep=request.parallel.ep,
        dp=request.parallel.dp,
        gpu_memory_bytes=request.gpu_memory,
        reserve_bytes=request.reserve,
        weights_bytes=plan.weights,
        weights_bytes_per_gpu=plan.weights_per_gpu,
        stored_bytes=request.model.stored_bytes,
        kv_bytes_per_token=whole.token_bytes,
        kv_bytes_per_token_within_spans=whole.early_token_bytes,
        kv_capped_bytes=whole.capped_bytes,
        kv_tokens=last.tokens,
        kv_tokens_per_gpu=last.tokens_per_gpu,
        longest_sequence=min(profile.longest for profile in plan.profiles),
        context=request.whole_context,
        fits=plan.fits,
        minimum_gpus=None if least is None else least.gpus,
        minimum_gpus_for_context=None if whole_context is None else whole_context.gpus,
        roles=tuple(_role(plan, profile) for profile in plan.profiles),
        assumptions=tuple(assumptions(plan)),
    )


def _role(plan: Plan, profile: Profile) -> RoleSummary:
    return RoleSummary(
        role=profile.role,
        kv_dtype=profile.kv_dtype,
        workspace_bytes=profile.workspace.bytes,
        kv_pool_bytes=profile.pool,
        kv_bytes_per_token=plan.whole_kv[profile.role].token_bytes,
        kv_bytes_per_token_per_gpu=profile.kv.token_bytes,
        kv_tokens=profile.tokens,
        kv_tokens_per_gpu=profile.tokens_per_gpu,
        longest_sequence=profile.longest,
        fits=profile.fits,
    )
