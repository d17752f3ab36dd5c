"""Operations on tensors that have a Triton kernel on CUDA and plain torch elsewhere: one package each.

The plain forms of those on pages (`paged_attention`, `mla_decode`, `kv_write`) are references: where their
kernels do not run, the engine has `engine.torch.attention`.
"""

import torch


def triton_runs(device: torch.device) -> bool:
    """Whether operations on tensors of `device` are Triton's. Tests say yes for a CPU, where its interpreter runs."""
    return device.type == "cuda"
