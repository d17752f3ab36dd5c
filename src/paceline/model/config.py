"""What the arithmetic of a model is made of, from either kind of file.

A model is its layers, and a layer is an attention and an MLP, each one of a few kinds. `families` says how every family
puts these together.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from paceline.model.files import ModelFiles

MAX_EXPERTS = 2**18
"""In all layers together; ten times those of Kimi K2. A damaged file shall be refused, not name tensors for minutes."""
_MAX_TURNS = 1e9


class Unsound(ValueError):
    """Numbers that no model has, or not together. Readers name the file, as `InvalidRequest`."""


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Positions divided by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        _require_positive(self.factor, "the factor of rope scaling")


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Llama 3.1: low frequencies divided by `factor`, high ones kept, a linear blend between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __post_init__(self) -> None:
        _require_positive(self.factor, "the factor of rope scaling")
        _require_positive(self.low_freq_factor, "low_freq_factor")
        if self.high_freq_factor < self.low_freq_factor:
            raise Unsound(
                f"high_freq_factor {self.high_freq_factor} is below low_freq_factor {self.low_freq_factor}"
            )


@dataclass(frozen=True, slots=True)
class YarnRope:
    """YaRN: a ramp between kept and divided frequencies; `attention_factor` scales cosine and sine."""

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool

    def __post_init__(self) -> None:
        _require_positive(self.factor, "the factor of rope scaling")
        _require_positive(self.attention_factor, "the attention factor of rope scaling")
        if not 1 / _MAX_TURNS <= self.beta_slow <= self.beta_fast <= _MAX_TURNS:
            raise Unsound(
                f"beta_slow {self.beta_slow} and beta_fast {self.beta_fast} bound no range of turns"
            )


@dataclass(frozen=True, slots=True)
class FactorsRope:
    """One divisor per frequency, as GGUF files carry Llama 3's scaling."""

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        for factor in self.factors:
            _require_positive(factor, "a factor of rope scaling")


RopeScaling: TypeAlias = LinearRope | Llama3Rope | YarnRope | FactorsRope


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions on the first `dim` values of a head.

    Value i turns with value i + dim / 2, or, `interleaved`, value 2i with value 2i + 1.
    """

    theta: float
    dim: int
    scaling: RopeScaling | None = None
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.dim % 2 or not self.dim:
            raise Unsound(f"rotary embedding needs an even head dimension, not {self.dim}")
        if self.theta <= 1:
            raise Unsound(f"the rotary base must be above 1, not {self.theta}")


@dataclass(frozen=True, slots=True)
class Window:
    """A row sees itself and the `size - 1` positions before it."""

    size: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions fall into chunks of `size`; a row sees those before it in its own."""

    size: int


Span: TypeAlias = Window | Chunk
"""How far back a layer looks, when not to the beginning."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """Llama 4: queries grow with their position, q * (1 + scale * log(1 + floor((position + 1) / floor)))."""

    floor: int
    scale: float


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Grouped-query attention (Ainslie et al. 2023). The cache holds a key and a value of `head_dim` per KV head.

    qk_norm: "rms" norms each head with a weight before it is rotated, "l2" without one after it
    sinks: a learned logit per head joins the softmax, and takes weight from the positions
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    span: Span | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["rms", "l2"] | None = None
    sinks: bool = False
    temperature: Temperature | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise Unsound(f"{self.heads} attention heads do not share {self.kv_heads} KV heads evenly")


@dataclass(frozen=True, slots=True)
class Indexer:
    """DeepSeek sparse attention: scores every position for a row, which then attends to the best `top_k` only.

    A `shared` one has neither weights nor keys: its layer takes what the layer before it selected.
    """

    heads: int
    dim: int
    top_k: int
    rope: Rope
    shared: bool = False


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    The cache holds one latent of `kv_rank` and one rotary key of `rope.dim` for all heads. A query head is `nope_dim`
    values that meet the latent, then `rope.dim` values that meet the rotary key. `scale` multiplies the scores. Without
    `q_rank` queries are projected in one step.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    value_dim: int
    rope: Rope
    scale: float
    bias: bool = False
    indexer: Indexer | None = None

    def __post_init__(self) -> None:
        _require_positive(self.scale, "the scale of attention scores")

    @property
    def latent_dim(self) -> int:
        """Values that the cache holds per position: the latent, then the rotary key."""
        return self.kv_rank + self.rope.dim


Attention: TypeAlias = GroupedAttention | LatentAttention


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """SwiGLU (Shazeer 2020) of `intermediate` values."""

    intermediate: int


@dataclass(frozen=True, slots=True)
class SoftmaxRouter:
    """Weights are a softmax over all experts; `renormalise` makes those of the chosen sum to one (Qwen3)."""

    renormalise: bool


@dataclass(frozen=True, slots=True)
class ChosenSoftmaxRouter:
    """Weights are a softmax over the chosen experts only; the router has a bias (gpt-oss)."""


@dataclass(frozen=True, slots=True)
class GroupedSigmoidRouter:
    """Sigmoid scores; a correction bias steers the choice but not the weights (DeepSeek-V3, arXiv 2412.19437).

    Experts lie in `groups`, of which the `kept` with the highest sum of their two best remain. Weights are multiplied
    by `scale`, and sum to one before when `renormalise`.
    """

    groups: int
    kept: int
    scale: float
    renormalise: bool


@dataclass(frozen=True, slots=True)
class InputSigmoidRouter:
    """The sigmoid of an expert's logit multiplies its input, not its output (Llama 4)."""


Router: TypeAlias = SoftmaxRouter | ChosenSoftmaxRouter | GroupedSigmoidRouter | InputSigmoidRouter


@dataclass(frozen=True, slots=True)
class ExpertMlp:
    """A mixture of `experts`, of which each row takes `chosen`, and a `shared` one of that many values that all take.

    activation: "silu" is SwiGLU; "gpt_oss" is its own, with interleaved rows, limits and biases
    """

    experts: int
    chosen: int
    intermediate: int
    router: Router
    shared: int | None = None
    activation: Literal["silu", "gpt_oss"] = "silu"

    def __post_init__(self) -> None:
        if self.chosen > self.experts:
            raise Unsound(f"{self.chosen} experts are to be chosen of {self.experts}")
        match self.router:
            case GroupedSigmoidRouter(groups, kept) if (
                self.experts % groups or kept > groups or self.chosen > self.experts // groups * kept
            ):
                raise Unsound(
                    f"{self.chosen} experts cannot be chosen of {kept} of {groups} groups of {self.experts}"
                )
            case _:
                pass


Mlp: TypeAlias = DenseMlp | ExpertMlp


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """h = h + attention(norm(h)); h = h + mlp(norm(h))"""

    attention: Attention
    mlp: Mlp


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder with RMSNorm before every block. `family` names its reader in `families`."""

    family: str
    hidden: int
    layers: tuple[LayerConfig, ...]
    vocab: int
    context: int
    norm_eps: float
    tied_head: bool
    bos_id: int | None
    eos_ids: frozenset[int]

    def __post_init__(self) -> None:
        experts = sum(layer.mlp.experts for layer in self.layers if isinstance(layer.mlp, ExpertMlp))
        if experts > MAX_EXPERTS:
            raise Unsound(f"{experts} experts in all layers are above {MAX_EXPERTS}")


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """What YaRN scales cosine and sine by when a file does not say."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _require_positive(value: float, what: str) -> None:
    if not 0 < value < math.inf:
        raise Unsound(f"{what} must be positive, not {value}")


def read_config(files: ModelFiles) -> ModelConfig:
    """The configuration of a model. Raises `InvalidRequest` for one that this program cannot run, saying why."""
    # Imported here, because both need the classes above.
    from paceline.model import config_gguf, config_hf

    return config_gguf.read(files.path) if files.kind == "gguf" else config_hf.read(files.path)
