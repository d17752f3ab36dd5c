"""Keys, values and latents into their pages, in the dtype of the pages.

e4m3 values are rounded to nearest even and clamped to the largest finite one. With a scale for each token and head it
is their largest magnitude / 448, at least `SMALLEST_SCALE`.

The engine does not call `convert_pages` and `convert_latent_pages` yet: pages change their form in host memory, on
their way to another worker (docs/decisions/0012).
"""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.kv_write import naive
from paceline.engine.torch.kernels.planes import LatentView, PlaneView


def kv_write(x: Tensor, plane: PlaneView, slots: Tensor) -> None:
    """Write row t to slot `slots[t]`, which is page * PAGE_TOKENS + offset.

    x: [T, heads, dim] float32 or bfloat16, stride 1 in dim
    slots: int64 [T], none twice
    """
    if kernels.triton_runs(x.device):
        from paceline.engine.torch.kernels.kv_write import triton

        triton.kv_write(x, plane, slots)
    else:
        naive.kv_write(x, plane, slots)


def latent_write(content: Tensor, rope: Tensor, latent: LatentView, slots: Tensor) -> None:
    """As `kv_write`, of content [T, C] and rope [T, R]."""
    content_plane, rope_plane = latent.planes
    kv_write(content.view(len(content), content_plane.heads, -1), content_plane, slots)
    kv_write(rope[:, None], rope_plane, slots)


def convert_pages(source: PlaneView, source_pages: Tensor, target: PlaneView, target_pages: Tensor) -> None:
    """Write page `source_pages[i]` of a float32 or bfloat16 plane to page `target_pages[i]` of another dtype or pool.

    source_pages, target_pages: int64 [N], no target twice. Positions that hold nothing are converted as well, and
    become anything.
    """
    if kernels.triton_runs(source.values.device):
        from paceline.engine.torch.kernels.kv_write import triton

        triton.convert_pages(source, source_pages, target, target_pages)
    else:
        naive.convert_pages(source, source_pages, target, target_pages)


def convert_latent_pages(
    source: LatentView, source_pages: Tensor, target: LatentView, target_pages: Tensor
) -> None:
    """As `convert_pages`, of content and rope."""
    content_plane, rope_plane = target.planes
    pages, tokens = source.content.shape[:2]
    heads = source.content.view(pages, tokens, content_plane.heads, -1).transpose(1, 2)
    convert_pages(PlaneView(heads), source_pages, content_plane, target_pages)
    convert_pages(PlaneView(source.rope[:, None]), source_pages, rope_plane, target_pages)
