"""How a model is cut over GPUs.

TP  tensor parallelism cuts heads, columns of MLPs and the vocabulary
DP  data parallelism gives each of its ranks all of the attention, and other requests; they share the routed experts
EP  expert parallelism gives whole experts to its ranks, which are all or some of the TP x DP ranks; where they are
    some, the factor that is left cuts the columns of each expert
PP  pipeline parallelism gives a run of layers to each stage
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import ExpertMlp, GroupedAttention, LayerConfig, ModelConfig
from paceline.planner.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Parallel:
    """Raises `InvalidRequest` when the factors do not go together."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for name, ways in (("tp", self.tp), ("pp", self.pp), ("ep", self.ep), ("dp", self.dp)):
            if ways < 1:
                raise InvalidRequest(f"--{name} {ways} is not at least 1")
        if self.tp * self.dp % self.ep:
            raise InvalidRequest(f"--ep {self.ep} does not divide tp x dp = {self.tp * self.dp}")

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that share the columns of one expert."""
        return self.tp * self.dp // self.ep

    def check(self, config: ModelConfig) -> None:
        """Raises `InvalidRequest` for a model that cannot be cut so."""
        if self.pp > len(config.layers):
            raise InvalidRequest(f"--pp {self.pp} is more than the model's {len(config.layers)} layers")
        if self.ep > 1 and not any(isinstance(layer.mlp, ExpertMlp) for layer in config.layers):
            raise InvalidRequest(f"--ep {self.ep} is for models with experts, which this one has none of")
        for layer in dict.fromkeys(config.layers):
            _check_layer(layer, self)

    def stages(self, layers: int) -> tuple[range, ...]:
        """The layers of every stage; of unequal ones the first have one more, because the last has the head."""
        size, more = divmod(layers, self.pp)
        starts = [i * size + min(i, more) for i in range(self.pp + 1)]
        return tuple(range(start, stop) for start, stop in pairwise(starts))

    def local(self, tensor: Tensor) -> tuple[int, int, int]:
        """(copies, rows, columns) that one rank has of `tensor`. KV heads fewer than ranks are held more than once."""
        routed = tensor.kind == "routed experts"
        copies = tensor.copies // self.ep if routed else tensor.copies
        units = -(-tensor.units // (self.expert_tp if routed else self.tp))
        if tensor.cut == "rows":
            return copies, tensor.rows // tensor.units * units, tensor.columns
        if tensor.cut == "columns":
            return copies, tensor.rows, tensor.columns // tensor.units * units
        return copies, tensor.rows, tensor.columns


def _check_layer(layer: LayerConfig, parallel: Parallel) -> None:
    attention, mlp, tp = layer.attention, layer.mlp, parallel.tp
    _divides(tp, attention.heads, "attention heads")
    if isinstance(attention, GroupedAttention) and attention.kv_heads % tp and tp % attention.kv_heads:
        raise InvalidRequest(f"--tp {tp} and {attention.kv_heads} KV heads do not divide each other")
    if not isinstance(mlp, ExpertMlp):
        _divides(tp, mlp.intermediate, "columns of an MLP")
        return
    _divides(parallel.expert_tp, mlp.intermediate, "columns of an expert", "tp x dp / ep =")
    _divides(parallel.ep, mlp.experts, "experts", "--ep")
    if mlp.shared is not None:
        _divides(tp, mlp.shared, "columns of the shared expert")


def _divides(ways: int, count: int, what: str, name: str = "--tp") -> None:
    if count % ways:
        raise InvalidRequest(f"{name} {ways} does not divide the {count} {what}")


def on_stage(tensor: Tensor, stage: int, stages: tuple[range, ...], *, tied: bool) -> bool:
    """Whether a stage holds `tensor`: the first also the embedding, the last also what comes behind the layers."""
    last = len(stages) - 1
    if tensor.kind == "embedding":
        return stage == 0 or (tied and stage == last)
    if tensor.layer is None or tensor.layer >= stages[last].stop:
        return stage == last
    return tensor.layer in stages[stage]


def of_stage(tensors: Iterable[Tensor], stage: int, stages: tuple[range, ...], *, tied: bool) -> list[Tensor]:
    return [tensor for tensor in tensors if on_stage(tensor, stage, stages, tied=tied)]
