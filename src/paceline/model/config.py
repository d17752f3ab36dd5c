"""What the arithmetic of a model needs to know, from either kind of file."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from paceline.contracts.errors import InvalidRequest
from paceline.model.files import ModelFiles

Family: TypeAlias = Literal["llama", "qwen2", "qwen3"]
FAMILIES: tuple[str, ...] = get_args(Family)


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Llama 3.1: low frequencies divided by `factor`, high ones kept, a linear blend between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnRope:
    """YaRN: a ramp between kept and divided frequencies; `attention_factor` scales cosine and sine."""

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool


@dataclass(frozen=True, slots=True)
class FactorsRope:
    """One divisor per frequency, as GGUF files carry Llama 3's scaling."""

    factors: tuple[float, ...]


RopeScaling: TypeAlias = LinearRope | Llama3Rope | YarnRope | FactorsRope


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A dense decoder of the Llama family: RMSNorm, grouped-query attention with rotary positions, SwiGLU."""

    family: Family
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    norm_eps: float
    tied_head: bool
    qkv_bias: bool
    qk_norm: bool
    bos_id: int | None
    eos_ids: frozenset[int]

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InvalidRequest(f"{self.heads} attention heads do not share {self.kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise InvalidRequest(f"rotary embedding needs an even head dimension, not {self.head_dim}")
        if self.rope_theta <= 0:
            raise InvalidRequest(f"the rotary base must be positive, not {self.rope_theta}")


def yarn_attention_factor(factor: float) -> float:
    """What YaRN scales cosine and sine by when a file does not say."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_config(files: ModelFiles) -> ModelConfig:
    """The configuration of a model. Raises `InvalidRequest` for one that this program cannot run, saying why."""
    # Imported here, because both need the classes above.
    from paceline.model import config_gguf, config_hf

    return config_gguf.read(files.path) if files.kind == "gguf" else config_hf.read(files.path)
