"""Which tensors are stored in how many bits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from paceline.contracts.errors import InvalidRequest
from paceline.model.names import Names
from paceline.planner.model import Model
from paceline.planner.precision import BF16, FP8, FP32, Precision, int4, of_format
from paceline.planner.tensors import Kind, Tensor

Weights: TypeAlias = Literal["native", "bf16", "fp8", "int4"]
Rest: TypeAlias = Literal["bf16", "fp8"]
GROUPS = (32, 64, 128)

_LINEAR: frozenset[Kind] = frozenset({"attention", "indexer", "dense MLP", "shared expert", "routed experts"})


@dataclass(frozen=True, slots=True)
class Mix:
    """`of_matrix` gives the precision of a matrix that may be quantised; all else stays as it is."""

    name: str
    of_matrix: Callable[[Tensor], Precision]

    def precision(self, tensor: Tensor) -> Precision:
        if tensor.kind == "router" and tensor.columns == 1:
            return FP32  # the bias that steers the choice of experts
        return self.of_matrix(tensor) if tensor.matrix else BF16


def bf16() -> Mix:
    return Mix("all BF16", lambda tensor: BF16)


def fp8() -> Mix:
    """DeepSeek-V3's own: blocks of 128 x 128; embedding, head, router, norms and the indexer's weights in BF16."""
    return Mix("FP8 with BF16 embedding, head, router and norms", _fp8)


def int4_linear(group: int) -> Mix:
    """Every linear layer, for a model without experts."""
    linear = int4(group)
    return Mix(
        f"INT4 group {group} with BF16 embedding, head and norms",
        lambda tensor: linear if tensor.kind in _LINEAR else BF16,
    )


def int4_experts(group: int, rest: Rest) -> Mix:
    """Routed experts only, as Kimi K2.5 stores them with groups of 32 and the `rest` in BF16."""
    routed = int4(group)
    others = _fp8 if rest == "fp8" else bf16().of_matrix
    return Mix(
        f"routed experts INT4 group {group}, the rest {rest.upper()}",
        lambda tensor: routed if tensor.kind == "routed experts" else others(tensor),
    )


def native(model: Model) -> Mix:
    """As the checkpoint's own configuration says, which may list modules by any of the names that files have."""
    if (scheme := model.scheme) is None:
        return Mix("as published: BF16", bf16().of_matrix)
    possible = tuple(Names.possible(model.config.family))

    def stored(tensor: Tensor) -> Precision:
        names = [spelling.stored(tensor.module) for spelling in possible]
        if _always_bf16(tensor) or any(scheme.ignored.match(name) for name in names):
            return BF16
        return next((of_format(found) for name in names if (found := scheme.format(name))), BF16)

    names = dict.fromkeys(of_format(rule.format).name for rule in scheme.rules)
    return Mix(f"as published: {', '.join(names)} where its configuration says so, the rest BF16", stored)


def choose(weights: str, group: int, rest: str | None, model: Model) -> Mix:
    """The mix that the command line asks for; a `rest` of None is BF16.

    Raises `InvalidRequest` for one that is not offered.
    """
    if weights not in get_args(Weights):
        raise InvalidRequest(f"--weights {weights} is none of {', '.join(get_args(Weights))}")
    if group not in GROUPS:
        raise InvalidRequest(f"--group {group} is none of {', '.join(map(str, GROUPS))}")
    if rest is not None and rest not in get_args(Rest):
        raise InvalidRequest(f"--rest {rest} is none of {', '.join(get_args(Rest))}")
    if rest is not None and not model.has_experts:
        raise InvalidRequest(f"--rest {rest} is for models with experts, which this one has none of")
    match weights:
        case "native":
            return native(model)
        case "bf16":
            return bf16()
        case "fp8":
            return fp8()
        case _:
            others: Rest = "fp8" if rest == "fp8" else "bf16"
            return int4_experts(group, others) if model.has_experts else int4_linear(group)


def _fp8(tensor: Tensor) -> Precision:
    return BF16 if _always_bf16(tensor) else FP8


def _always_bf16(tensor: Tensor) -> bool:
    """What checkpoints do not quantise, even where their configuration does not say so."""
    return tensor.kind not in _LINEAR or tensor.module.endswith("indexer.weights_proj")
