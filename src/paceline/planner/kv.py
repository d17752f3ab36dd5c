"""What the KV cache costs and how many tokens fit into a pool of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.layout import PageLayout, Plane
from paceline.model.config import Chunk, GroupedAttention, ModelConfig, Span


@dataclass(frozen=True, slots=True)
class SpanCost:
    """Layers of one span: bytes per token, for at most `tokens` of them in a sequence; None: for all."""

    span: Span | None
    layers: int
    token_bytes: int
    tokens: int | None


@dataclass(frozen=True, slots=True)
class KvCost:
    """Of one sequence."""

    spans: tuple[SpanCost, ...]

    @property
    def token_bytes(self) -> int:
        """Of one more token of a sequence longer than every span."""
        return sum(cost.token_bytes for cost in self.spans if cost.tokens is None)

    @property
    def early_token_bytes(self) -> int:
        """Of a token while the sequence is shorter than every span."""
        return sum(cost.token_bytes for cost in self.spans)

    @property
    def capped_bytes(self) -> int:
        """What layers with a span hold of a long sequence, however long it becomes."""
        return sum(cost.token_bytes * cost.tokens for cost in self.spans if cost.tokens is not None)

    def sequence_bytes(self, tokens: int) -> int:
        """Of a sequence of `tokens`, in whole pages."""
        paged = -(-tokens // PAGE_TOKENS) * PAGE_TOKENS
        return sum(
            cost.token_bytes * (paged if cost.tokens is None else min(paged, cost.tokens))
            for cost in self.spans
        )

    def longest(self, pool: int, context: int) -> int:
        """Tokens of the longest single sequence that fits into `pool` bytes, up to `context`."""
        low, high = 0, -(-context // PAGE_TOKENS)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.sequence_bytes(middle * PAGE_TOKENS) <= pool
            low, high = (middle, high) if fits else (low, middle - 1)
        return min(low * PAGE_TOKENS, context)

    def tokens(self, pool: int, context: int) -> int:
        """Tokens that `pool` bytes hold in sequences as long as can be, up to `context`; rounded down to pages."""
        length = self.longest(pool, context)
        if not length:
            return 0
        return pool * length // self.sequence_bytes(length) // PAGE_TOKENS * PAGE_TOKENS


def kv_cost(config: ModelConfig, layout: PageLayout, layers: range, tp: int) -> KvCost:
    """What one rank of a stage that runs `layers` holds.

    KV heads are shared out, and held more than once where they are fewer than `tp`. A latent and an index key serve all
    heads, so that every rank holds them.
    """
    costs: dict[Span | None, SpanCost] = {}
    for group in layout.groups:
        planes = [plane for plane in group.planes if plane.layer in layers]
        if not planes:
            continue
        before = costs.get(group.span)
        costs[group.span] = SpanCost(
            group.span,
            len({plane.layer for plane in planes}) + (before.layers if before else 0),
            sum(_local_bytes(config, planes, tp)) + (before.token_bytes if before else 0),
            None if group.span is None else _held(group.span),
        )
    return KvCost(tuple(costs.values()))


def _local_bytes(config: ModelConfig, planes: list[Plane], tp: int) -> Iterator[int]:
    for plane in planes:
        attention = config.layers[plane.layer].attention
        if isinstance(attention, GroupedAttention):
            yield plane.token_bytes // attention.kv_heads * -(-attention.kv_heads // tp)
        else:
            yield plane.token_bytes


def _held(span: Span) -> int:
    """Tokens whose pages a sequence keeps: those in sight, and what shares a page with the first of them."""
    pages = -(-span.size // PAGE_TOKENS)
    aligned = isinstance(span, Chunk) and span.size % PAGE_TOKENS == 0
    return (pages if aligned else pages + 1) * PAGE_TOKENS
