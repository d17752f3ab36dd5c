"""What a plan takes for granted, in words, so that nobody has to trust its numbers."""

from collections.abc import Iterator

from paceline.planner.plan import Plan
from paceline.planner.units import GIB
from paceline.planner.workspace import SPLITS


def assumptions(plan: Plan) -> Iterator[str]:
    request = plan.request
    model, parallel = request.model, request.parallel
    yield "this is arithmetic, not a measurement: Paceline itself does not run a model on several GPUs yet"
    yield "GB is 10^9 bytes, GiB 2^30; a size without a unit is GiB, as cards are named (an H100 of 80 GB has 79.6 GiB)"
    biases = "; router biases in FP32" if model.has_experts else ""
    yield f"weights: {request.mix.name}{biases}"
    if model.mtp_layers:
        counted = "counted, with its KV" if request.mtp else "not loaded, not counted (--mtp counts it)"
        yield f"the layer for multi-token prediction that the checkpoint carries is {counted}"
    yield "text model only; no vision tower, no drafter"
    if parallel.tp > 1:
        yield (
            "TP cuts heads, MLP columns and the vocabulary; every rank keeps norms, routers and indexers, and of "
            "latent attention what compresses and all of the KV"
        )
    if parallel.pp > 1:
        yield "weights per GPU are those of the fullest stage, tokens those of the stage that holds the fewest"
    yield (
        f"reserve {request.reserve / GIB:.1f} GiB per GPU for the driver's context, buffers of collectives and CUDA "
        "graphs: assumed, not measured (--reserve)"
    )
    steps = {
        "prefill": f"prefill runs chunks of {request.chunk:,} tokens (--chunk)",
        "decode": f"decode runs {request.batch:,} sequences (--batch), attention split {SPLITS} ways",
    }
    busy = "; experts equally busy" if model.has_experts else ""
    yield "workspace: " + "; ".join(steps[role] for role in request.roles) + busy
    if "prefill" in request.roles and request.kv["prefill"] != request.kv.get(
        "decode", request.kv["prefill"]
    ):
        yield (
            f"prefill keeps its KV in {request.kv['prefill']} (--prefill-kv); "
            f"pages become {request.kv['decode']} in the handoff"
        )
    if any(kv.capped_bytes for kv in plan.whole_kv.values()):
        context = request.whole_context
        yield f"sequences of up to {context:,} tokens (--context): layers with a span hold no more than it of each"
