"""The order of bytes in a page.

Layers that look equally far back form page groups of equally many bytes. A page belongs to one group and holds
`PAGE_TOKENS` positions of its layers; a sequence has, for each group, a page per `PAGE_TOKENS` positions, and gives
back those that the group's layers no longer see. One pool serves all groups (Jenga, arXiv 2503.18292).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal, TypeAlias, get_args

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.model.config import Chunk, GroupedAttention, LayerConfig, ModelConfig, Span, Window

KvDtype: TypeAlias = Literal["float32", "bfloat16", "fp8_e4m3", "fp8_per_token_head"]
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)

PlaneKind: TypeAlias = Literal["kv", "latent", "index"]
"""Keys, then values, of every KV head; MLA's latent and rotary key; the keys of a sparse-attention indexer."""
PlaneFormat: TypeAlias = Literal["float32", "bfloat16", "e4m3", "e4m3_scaled", "e4m3_latent"]
"""How a plane stores a row of one token and head.

    e4m3          values only; their scale belongs to the layer and lies outside the pages
    e4m3_scaled   values; behind those of all tokens one float32 scale for each
    e4m3_latent   512 values | 4 float32 scales, one per 128 | 64 bfloat16 of the rotary key (DeepSeek's fp8_ds_mla)
"""

LATENT_BLOCK = 128
"""Values of a latent that share a scale in `e4m3_latent`."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One kind of KV of one layer in a page: `[head][token][dim]`; "kv" has twice the KV heads, keys first."""

    layer: int
    kind: PlaneKind
    heads: int
    dim: int
    format: PlaneFormat
    rotary: int = 0  # values at the end of a latent row that are its rotary key

    def stored_as(self, dtype: KvDtype) -> "Plane":
        """The same values in another dtype. Raises `InvalidRequest` for a latent that blocks of scales do not fit."""
        match dtype, self.kind:
            case (("float32" | "bfloat16"), _):
                return replace(self, format=dtype)
            case "fp8_e4m3", ("kv" | "latent"):
                return replace(self, format="e4m3")
            case _, "latent":
                if (self.dim - self.rotary) % LATENT_BLOCK:
                    raise InvalidRequest(
                        f"{dtype} has a scale for {LATENT_BLOCK} values of a latent; "
                        f"{self.dim - self.rotary} is no multiple"
                    )
                return replace(self, format="e4m3_latent")
            case _:
                # Index keys decide which positions are read at all: in FP8 each has its own scale, as DeepSeek does it.
                return replace(self, format="e4m3_scaled")

    @property
    def row_bytes(self) -> int:
        """Of one token and head."""
        match self.format:
            case "float32":
                return 4 * self.dim
            case "bfloat16":
                return 2 * self.dim
            case "e4m3":
                return self.dim
            case "e4m3_scaled":
                return self.dim + 4
            case "e4m3_latent":
                latent = self.dim - self.rotary
                return latent + 4 * (latent // LATENT_BLOCK) + 2 * self.rotary

    @property
    def token_bytes(self) -> int:
        return self.heads * self.row_bytes

    def token_parts(self, offset: int) -> list[tuple[int, int, int]]:
        """Where the bytes of a token lie when the plane begins at `offset`: of each part `[line][token][width]` its
        offset, lines and width."""
        if self.format != "e4m3_scaled":
            return [(offset, self.heads, self.row_bytes)]
        return [(offset, self.heads, self.dim), (offset + self.heads * PAGE_TOKENS * self.dim, self.heads, 4)]

    @property
    def bytes(self) -> int:
        return self.token_bytes * PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Planes that share pages, in the order in which they lie there. Without `span` all positions stay visible."""

    planes: tuple[Plane, ...]
    span: Span | None = None

    def first_visible(self, position: int) -> int:
        """The first position that a row at `position`, or any row behind it, attends to."""
        match self.span:
            case None:
                return 0
            case Window(size):
                return max(0, position - size + 1)
            case Chunk(size):
                return position // size * size

    def first_page(self, position: int) -> int:
        """Index of the first page of a sequence that a row at `position`, or any behind it, needs."""
        return self.first_visible(position) // PAGE_TOKENS

    @property
    def token_bytes(self) -> int:
        return sum(plane.token_bytes for plane in self.planes)


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Pages of all groups have equally many bytes. Equal layouts are a raw copy for transport and kvstore."""

    groups: tuple[PageGroup, ...]

    @property
    def page_bytes(self) -> int:
        return self.groups[0].token_bytes * PAGE_TOKENS

    @property
    def token_bytes(self) -> int:
        """Of one position in all groups, as long as none has given up pages."""
        return sum(group.token_bytes for group in self.groups)

    def planes(self) -> Iterator[tuple[int, int, Plane]]:
        """(group, byte offset in a page, plane) of every plane."""
        for g, group in enumerate(self.groups):
            offset = 0
            for plane in group.planes:
                yield g, offset, plane
                offset += plane.bytes

    def stored_as(self, dtype: KvDtype) -> "PageLayout":
        """The same values in another dtype. Raises `InvalidRequest` where it does not fit."""
        return PageLayout(
            tuple(PageGroup(tuple(p.stored_as(dtype) for p in g.planes), g.span) for g in self.groups)
        )


def plan_layout(config: ModelConfig, dtype: KvDtype) -> PageLayout:
    """The layout of a model's pages.

    Layers of one span are cut into groups of as many layers as divide the number of layers of every span, so that all
    pages are equally large. Raises `InvalidRequest` where layers of several spans differ in size, or `dtype` does not
    fit.
    """
    spans: dict[Span | None, list[list[Plane]]] = {}
    for i, layer in enumerate(config.layers):
        span = layer.attention.span if isinstance(layer.attention, GroupedAttention) else None
        spans.setdefault(span, []).append([p.stored_as(dtype) for p in _layer_planes(i, layer)])
    size = gcd(*(len(layers) for layers in spans.values()))
    groups = tuple(
        PageGroup(tuple(plane for layer in layers[start : start + size] for plane in layer), span)
        for span, layers in spans.items()
        for start in range(0, len(layers), size)
    )
    if len({group.token_bytes for group in groups}) > 1:
        raise InvalidRequest("layers of different spans need KV of different size, which is not supported")
    return PageLayout(groups)


def _layer_planes(i: int, layer: LayerConfig) -> Iterator[Plane]:
    attention = layer.attention
    if isinstance(attention, GroupedAttention):
        yield Plane(i, "kv", 2 * attention.kv_heads, attention.head_dim, "float32")
        return
    yield Plane(i, "latent", 1, attention.latent_dim, "float32", rotary=attention.rope.dim)
    if attention.indexer is not None and not attention.indexer.shared:
        yield Plane(i, "index", 1, attention.indexer.dim, "float32")
