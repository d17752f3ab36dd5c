"""`kv_write` in plain torch."""

import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.torch.kernels.planes import SMALLEST_SCALE, PlaneView
from paceline.model.floats import E4M3_MAX


def kv_write(x: Tensor, plane: PlaneView, slots: Tensor) -> None:
    values, scales = _encode(x, plane)
    pages, offsets = slots // PAGE_TOKENS, slots % PAGE_TOKENS
    plane.values[pages, :, offsets] = values
    if plane.scales is not None:
        plane.scales[pages, :, offsets] = scales


def convert_pages(source: PlaneView, source_pages: Tensor, target: PlaneView, target_pages: Tensor) -> None:
    values, scales = _encode(source.values[source_pages], target)
    target.values[target_pages] = values
    if target.scales is not None:
        target.scales[target_pages] = scales


def _encode(x: Tensor, plane: PlaneView) -> tuple[Tensor, Tensor]:
    """x [..., dim] in the dtype of the plane, and float32 [...] what it is to be multiplied by."""
    if plane.scales is not None:
        scales = (x.abs().amax(-1).float() / E4M3_MAX).clamp_(min=SMALLEST_SCALE)
    else:
        scales = torch.full(x.shape[:-1], plane.scale, device=x.device)
    if plane.values.dtype == torch.float8_e4m3fn:
        x = (x.float() / scales[..., None]).clamp_(-E4M3_MAX, E4M3_MAX)
    return x.to(plane.values.dtype), scales
