"""Planes of a page pool, as the kernels see them: views of the memory, with the scales that fp8 values have.

A page holds `PAGE_TOKENS` positions. The first stride of each view is that of whole pages, whatever else they hold.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_SCALE = 1e-12
"""The scale of a row of zeros. Its inverse is finite, and so is what it is divided by."""


@dataclass(frozen=True, slots=True)
class PlaneView:
    """Keys or values of one layer.

    values: [pages, heads, PAGE_TOKENS, dim] float32, bfloat16 or float8_e4m3fn; stride 1 in dim
    scale: what every value is multiplied by when it is read; only for e4m3
    scales: float32 [pages, heads, PAGE_TOKENS]: the same per token and head; `scale` is 1 then
    """

    values: Tensor
    scale: float = 1.0
    scales: Tensor | None = None

    @property
    def heads(self) -> int:
        return self.values.shape[1]

    @property
    def dim(self) -> int:
        return self.values.shape[3]


@dataclass(frozen=True, slots=True)
class LatentView:
    """Compressed keys and values of one MLA layer, and the rotary key that all heads share (DeepSeek-V2, 2.1.2).

    content: [pages, PAGE_TOKENS, C] float32, bfloat16 or float8_e4m3fn; stride 1 in C
    rope: [pages, PAGE_TOKENS, R], with one scale the same dtype, else bfloat16; stride 1 in R
    scale: what content and rope are multiplied by when they are read; only for e4m3
    scales: float32 [pages, PAGE_TOKENS, C / n], of n successive values of content, and none of rope; `scale` is 1 then
    """

    content: Tensor
    rope: Tensor
    scale: float = 1.0
    scales: Tensor | None = None

    @classmethod
    def joined(cls, plane: Tensor, content: int, scale: float = 1.0) -> "LatentView":
        """Of a plane [pages, PAGE_TOKENS, C + R] of one dtype whose first `content` values are the content."""
        return cls(plane[..., :content], plane[..., content:], scale)

    @classmethod
    def rows(cls, plane: Tensor, content: int = 512, groups: int = 4) -> "LatentView":
        """Of rows of bytes, as fp8_ds_mla lays them: e4m3 content, float32 scales of its groups, bfloat16 rope.

        plane: uint8 [pages, PAGE_TOKENS, content + 4 * groups + 2 * R]: 656 bytes for 512 values, 4 scales and R = 64
        """
        rope = content + 4 * groups
        return cls(
            content=plane[..., :content].view(torch.float8_e4m3fn),
            scales=plane[..., content:rope].view(torch.float32),
            rope=plane[..., rope:].view(torch.bfloat16),
        )

    @property
    def planes(self) -> tuple[PlaneView, PlaneView]:
        """The same memory as planes of content, with a head for each scale, and of rope, with one head."""
        if self.scales is None:
            return PlaneView(self.content[:, None], self.scale), PlaneView(self.rope[:, None], self.scale)
        groups = self.scales.shape[2]
        heads = self.content.view(*self.content.shape[:2], groups, -1).transpose(1, 2)
        return PlaneView(heads, scales=self.scales.transpose(1, 2)), PlaneView(self.rope[:, None])


def check_contiguous(view: Tensor) -> None:
    """That a page of `view` is contiguous."""
    expected = 1
    for size, stride in zip(reversed(view.shape[1:]), reversed(view.stride()[1:]), strict=True):
        assert stride == expected or size == 1, f"shape {tuple(view.shape)}, strides {view.stride()}"
        expected *= size
