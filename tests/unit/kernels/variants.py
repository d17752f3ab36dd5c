"""How often each kernel would be compiled while steps of all sizes run: what launches ask for, without a GPU.

Tensors have addresses but no values here, so that a launcher that waits for a value of the GPU fails.
Prints a JSON object of kernels. TRITON_INTERPRET must not be set in that process.
"""

import json
import sys
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import Sampling
from paceline.engine.torch.kernels.experts import ExpertLayer, Fp8Experts, Int4Experts
from paceline.engine.torch.kernels.experts import triton as experts
from paceline.engine.torch.kernels.fp8_linear import triton as fp8_linear
from paceline.engine.torch.kernels.kv_write import triton as kv_write
from paceline.engine.torch.kernels.mla_decode import triton as mla_decode
from paceline.engine.torch.kernels.page_tags import triton as page_tags
from paceline.engine.torch.kernels.paged_attention import triton as paged_attention
from paceline.engine.torch.kernels.planes import LatentView, PlaneView
from paceline.engine.torch.kernels.rms_norm import triton as rms_norm
from paceline.engine.torch.kernels.rope import triton as rope
from paceline.engine.torch.kernels.rows import Rows
from paceline.engine.torch.kernels.sampling import Draws
from paceline.engine.torch.kernels.sampling import triton as sampling
from paceline.engine.torch.kernels.w4a16 import triton as w4a16

SIZES = (*range(1, 36), 48, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 300, 512, 1000, 1024, 4096)
BACKEND = make_backend(GPUTarget("cuda", 90, 32))
E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16

asked: dict[str, set[str]] = defaultdict(set)


def record(kernel: JITFunction[Any], *args: object, grid: object, warmup: bool, **kwargs: object) -> None:
    """In the place of a launch."""
    bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
    _, specialisation, options = bind(*args, **kwargs)
    asked[f"{kernel.__module__.split('.')[-2]} {kernel.__name__}"].add(f"{specialisation} {options}")


def products(x: Tensor) -> None:
    """Of matrices of two sizes, as the layers of a model have them."""
    for rows in (256, 1024):
        w4a16.w4a16_linear(x, torch.zeros(rows, 64, dtype=torch.int32), torch.ones(rows, 16).to(BF16), None)
        fp8_linear.fp8_linear(x, torch.zeros(rows, 512).to(E4M3), torch.ones(1, 1), (rows, 512))


def routed(x: Tensor) -> None:
    packed = torch.zeros(2, 256, 64, dtype=torch.int32), torch.zeros(2, 512, 16, dtype=torch.int32)
    int4 = [Int4Experts(bits, torch.ones(2, bits.shape[1], bits.shape[2] // 4).to(BF16)) for bits in packed]
    shapes = (2, 256, 512), (2, 512, 128)
    fp8 = [Fp8Experts(torch.zeros(shape).to(E4M3), torch.ones(2, 1, 1), shape[1:]) for shape in shapes]
    ids = torch.zeros(len(x), 8, dtype=torch.int64)
    for gate_up, down in (int4, fp8):
        experts.experts(x, ids, torch.ones(ids.shape), ExpertLayer(gate_up, down))


def step(size: int, *, single: bool) -> tuple[Rows, Tensor]:
    """Of `size` rows: of a sequence each, or of one."""
    sequences = size if single else 1
    starts = torch.tensor([*range(size), size] if single else [0, size]).int()
    ones = torch.ones(size).int()
    rows = Rows(starts, ones[:sequences], 0 * ones, ones, longest=1 if single else size)
    # Not each array of a step lies where wide loads could have it.
    table = torch.zeros(1 + sequences * (size // 3 + 1)).int()[1:].view(sequences, -1)
    return rows, table


def attention(size: int) -> None:
    q, latents = torch.zeros(size, 16, 128).to(BF16), torch.zeros(size, 16, 576).to(BF16)
    pool = torch.zeros(2, PAGE_TOKENS, 576).to(BF16)
    plane = PlaneView(pool.view(-1)[: 2 * 2 * PAGE_TOKENS * 128].view(2, 2, PAGE_TOKENS, 128))
    for single in (True, False):
        rows, table = step(size, single=single)
        paged_attention.paged_attention(q, plane, plane, table, rows, 0.1)
        mla_decode.mla_decode(
            latents[..., :512], latents[..., 512:], LatentView.joined(pool, 512), table, rows, 0.1
        )
    slots = torch.zeros(size + 1, dtype=torch.int64)[1:]
    kv_write.kv_write(q[:, :2], plane, slots)
    page_tags.changed(slots, slots, slots.clone())


def rowwise(x: Tensor) -> None:
    rms_norm.rms_norm(x, torch.ones(512), 1e-6)
    rms_norm.add_rms_norm(x, x, torch.ones(512), 1e-6)
    angles = torch.ones(len(x), 32)
    rope.rope_(x.view(len(x), 8, 64), angles, angles, interleaved=True)
    draws = Draws.of([Sampling(max_tokens=1)] * len(x), [0] * len(x), torch.device("cpu"))
    sampling.sample(x.float(), draws)


def main() -> None:
    JITFunction.run = record
    torch.set_default_device("meta")
    for size in SIZES:
        x = torch.zeros(size, 512).to(BF16)
        products(x)
        routed(x)
        attention(size)
        rowwise(x)
    json.dump({kernel: len(variants) for kernel, variants in sorted(asked.items())}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
