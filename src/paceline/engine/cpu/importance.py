"""How much the inputs of a matrix count when its weights are rounded: their mean squares on a sample of text.

Rounding changes a product W x by D x, where D = W' - W. Were inputs uncorrelated, the mean square of that would be the
sum over columns of D^2 E[x^2], and this is what the search for scales makes small (GGML's importance matrix). Inputs of
SmolLM2-135M differ so much that products err half as much in squares as they do where all count alike.

The sample runs through the model in plain numpy and float32, with one matrix expanded at a time.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.model.config import GroupedAttention, ModelConfig
from paceline.model.floats import Float32
from paceline.model.rope import inverse_frequencies
from paceline.model.weights import Stored

# Weights expanded at a time.
_BLOCK = 1 << 22
# Mean squared errors of SmolLM2's products on another text, from samples of 0, 50 and 151 tokens: 3.66, 2.04, 2.02e-3.
_TOKENS = 64
# Of the mean over all inputs: what the sample leaves silent is not worth nothing.
_LEAST = np.float32(0.03)
_SMALLEST = np.float32(1e-30)


def measure_importance(
    config: ModelConfig, stored: Mapping[str, Stored], tokens: Sequence[int]
) -> dict[str, Float32]:
    """Float32 [columns], positive, about one, by the names of all matrices within layers.

    `stored` is a model that `support.check_model` accepts. Of `tokens` the first 64 are enough.
    """
    squares = _Sample(config, stored, tokens[:_TOKENS]).run()
    return {name: found / max(found.mean(), _SMALLEST) + _LEAST for name, found in squares.items()}


class _Sample:
    """The sample on its way through the layers; T tokens, rows of the residual stream [T, hidden]."""

    def __init__(self, config: ModelConfig, stored: Mapping[str, Stored], tokens: Sequence[int]) -> None:
        attention = config.layers[0].attention
        if not isinstance(attention, GroupedAttention):
            raise TypeError("a model that `check_model` refuses")
        self._config = config
        self._attention = attention
        self._stored = stored
        self._found: dict[str, Float32] = {}
        embedding = stored["embed_tokens.weight"]
        self._x = np.concatenate([embedding.float32(token, token + 1) for token in tokens])
        self._cos, self._sin = _rotation(attention, len(tokens))

    def run(self) -> dict[str, Float32]:
        for i in range(len(self._config.layers)):
            name = f"layers.{i}."
            self._attend(self._norm(name + "input_layernorm", self._x), name + "self_attn.")
            self._feed(self._norm(name + "post_attention_layernorm", self._x), name + "mlp.")
        return self._found

    def _attend(self, normed: Float32, name: str) -> None:
        attention = self._attention
        dim, group = attention.head_dim, attention.heads // attention.kv_heads
        q, k, v = (
            self._multiply(f"{name}{part}_proj", normed).reshape(len(normed), -1, dim) for part in "qkv"
        )
        if attention.qk_norm is not None:
            q, k = self._norm(name + "q_norm", q), self._norm(name + "k_norm", k)
        q, k = self._rotate(q), self._rotate(k)
        # Query heads of one KV head side by side: [kv heads, group * T, dim].
        queries = q.reshape(len(q), -1, group, dim).transpose(1, 2, 0, 3).reshape(-1, group * len(q), dim)
        scores = (queries @ k.transpose(1, 2, 0)).reshape(-1, group, len(q), len(k)) * np.float32(dim**-0.5)
        scores += np.triu(np.full((len(q), len(k)), -np.inf, np.float32), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        found = scores.reshape(-1, group * len(q), len(k)) @ v.transpose(1, 0, 2)
        heads = found.reshape(-1, group, len(q), dim).transpose(2, 0, 1, 3).reshape(len(q), -1)
        self._x += self._multiply(name + "o_proj", heads)

    def _feed(self, normed: Float32, name: str) -> None:
        gate, up = self._multiply(name + "gate_proj", normed), self._multiply(name + "up_proj", normed)
        with np.errstate(over="ignore"):
            gate /= 1 + np.exp(-gate)
        self._x += self._multiply(name + "down_proj", gate * up)

    def _multiply(self, module: str, x: Float32) -> Float32:
        """[T, out]; what the module's inputs are is noted."""
        matrix, bias = self._stored[module + ".weight"], self._stored.get(module + ".bias")
        self._found[module + ".weight"] = np.mean(x * x, axis=0)
        rows, columns = matrix.shape
        y = np.empty((len(x), rows), np.float32)
        stride = max(1, _BLOCK // columns)
        for start in range(0, rows, stride):
            stop = min(rows, start + stride)
            np.matmul(x, matrix.float32(start, stop).T, out=y[:, start:stop])
        if bias is not None:
            y += bias.float32(0, 1)
        return y

    def _norm(self, module: str, x: Float32) -> Float32:
        """RMSNorm (Zhang & Sennrich 2019) over the last axis."""
        squares = np.mean(x * x, axis=-1, keepdims=True)
        weight = self._stored[module + ".weight"].float32(0, 1)[0]
        found: Float32 = x / np.sqrt(squares + np.float32(self._config.norm_eps)) * weight
        return found

    def _rotate(self, heads: Float32) -> Float32:
        """[T, heads, dim], of which the first values turn."""
        rope = self._attention.rope
        if rope is None:
            return heads
        part, rest = heads[..., : rope.dim], heads[..., rope.dim :]
        one, other = (
            (part[..., ::2], part[..., 1::2])
            if rope.interleaved
            else (part[..., : rope.dim // 2], part[..., rope.dim // 2 :])
        )
        turned = one * self._cos - other * self._sin, other * self._cos + one * self._sin
        joined = (
            np.stack(turned, axis=-1).reshape(part.shape)
            if rope.interleaved
            else np.concatenate(turned, axis=-1)
        )
        return np.concatenate((joined, rest), axis=-1)


def _rotation(attention: GroupedAttention, count: int) -> tuple[Float32, Float32]:
    """Cosine and sine of positions 0 to `count`, [T, 1, rope.dim / 2]."""
    if attention.rope is None:
        return np.empty((count, 1, 0), np.float32), np.empty((count, 1, 0), np.float32)
    frequencies, scale = inverse_frequencies(attention.rope)
    angles = (np.arange(count)[:, None] * frequencies)[:, None]
    return (np.cos(angles) * scale).astype(np.float32), (np.sin(angles) * scale).astype(np.float32)
