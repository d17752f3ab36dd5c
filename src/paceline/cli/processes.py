"""Which processes `paceline up` runs, and with what settings. Pure."""

from dataclasses import dataclass, field

from paceline.contracts.messages import Role
from paceline.engine.layout import KvDtype
from paceline.engine.registry import ComputeDtype, EngineName, Weights


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line. `decode` None is one worker, or two when they are `unified`.

    `decode_kv_dtype` and `decode_weights` are those of decode workers only, `kv_dtype` and `weights` of all others.
    """

    model: str | None = None
    port: int = 8080
    prefill: int = 1
    decode: int | None = None
    unified: bool = False
    draft: bool = True
    engine: EngineName = "auto"
    device: str | None = None
    dtype: ComputeDtype | None = None
    weights: Weights | None = None
    decode_weights: Weights | None = None
    kv_dtype: KvDtype | None = None
    decode_kv_dtype: KvDtype | None = None
    verbose: bool = False


@dataclass(frozen=True)
class ChildSpec:
    """One service process: `python -m paceline.<role>` with `env` on top of the environment of `up`."""

    role: Role
    worker: str
    env: dict[str, str] = field(default_factory=dict)


def children(options: Options, shared: dict[str, str]) -> list[ChildSpec]:
    """The services of one mesh, the gateway first. `shared` is what the run settled: NATS, directory, model, port."""
    env = {**shared, "PACELINE_ENGINE": options.engine}
    if not options.draft:
        env["PACELINE_DRAFT"] = "off"
    env |= _given(
        DEVICE=options.device, DTYPE=options.dtype, WEIGHTS=options.weights, KV_DTYPE=options.kv_dtype
    )
    counts: dict[Role, int] = {
        "gateway": 1,
        "kvstore": 1,
        "prefill": 0 if options.unified else options.prefill,
        "decode": _decode_workers(options),
        "drafter": 1 if options.draft else 0,
    }
    own = {"decode": _given(WEIGHTS=options.decode_weights, KV_DTYPE=options.decode_kv_dtype)}
    return [
        _child(role, f"{role}-{i}", env | own.get(role, {}))
        for role, count in counts.items()
        for i in range(count)
    ]


def _given(**settings: str | None) -> dict[str, str]:
    """As variables, those that were asked for."""
    return {f"PACELINE_{name}": value for name, value in settings.items() if value is not None}


def _decode_workers(options: Options) -> int:
    if options.decode is not None:
        return options.decode
    return 2 if options.unified else 1


def _child(role: Role, worker: str, env: dict[str, str]) -> ChildSpec:
    return ChildSpec(role, worker, {**env, "PACELINE_WORKER": worker})
