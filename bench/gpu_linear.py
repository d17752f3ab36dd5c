"""The matrix kernels at the shapes of one of eight GPUs: rows of the weights, or experts' inner values, are shared."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bench.gpu_attention import random
from bench.gpu_case import Case, Prepared
from paceline.engine.torch.kernels.experts import (
    DenseExperts,
    ExpertLayer,
    Experts,
    Fp8Experts,
    Int4Experts,
    experts,
)
from paceline.engine.torch.kernels.experts import naive as experts_naive
from paceline.engine.torch.kernels.fp4_linear import fp4_linear
from paceline.engine.torch.kernels.fp4_linear import naive as fp4_naive
from paceline.engine.torch.kernels.fp8_linear import fp8_linear
from paceline.engine.torch.kernels.fp8_linear import naive as fp8_naive
from paceline.engine.torch.kernels.w4a16 import naive as int4_naive
from paceline.engine.torch.kernels.w4a16 import w4a16_linear

BLOCK = (128, 128)


@dataclass(frozen=True)
class ExpertShape:
    name: str
    experts: int
    chosen: int
    hidden: int
    inner: int


MATRICES = {
    "llama-3-70b qkv": (1280, 8192),
    "llama-3-70b gate, up": (7168, 8192),
    "llama-3-70b down": (8192, 3584),
    "kimi-k2.5 o": (7168, 1024),
}
EXPERTS = [ExpertShape("kimi-k2.5", 384, 8, 7168, 256), ExpertShape("glm-5.2", 256, 8, 6144, 256)]
ROWS = (1, 8, 32, 64, 2048)


def cases(*, quick: bool) -> Iterator[Case]:
    rows = (1, 64) if quick else ROWS
    matrices = dict(list(MATRICES.items())[:1]) if quick else MATRICES
    for name, (out, columns) in matrices.items():
        for count in rows:
            yield w4a16(name, count, out, columns, group=128)
            yield fp8(name, count, out, columns)
            yield fp4(name, count, out, columns)
    for shape in EXPERTS[:1] if quick else EXPERTS:
        for count in rows:
            yield expert_layer(shape, count, "int4")
            yield expert_layer(shape, count, "fp8")
        yield expert_layer(shape, 64, "bf16")


def w4a16(name: str, rows: int, out: int, columns: int, *, group: int) -> Case:
    def prepare(device: torch.device) -> Prepared:
        packed, scales = _int4(out, columns, group, device)
        x = random(rows, columns, device=device)
        return Prepared(
            run=lambda: w4a16_linear(x, packed, scales, None),
            reference=lambda: int4_naive.w4a16_linear(x.float(), packed, scales, None),
            moved=packed.nbytes + scales.nbytes + x.nbytes + 2 * rows * out,
            operations=2 * rows * out * columns,
        )

    return Case("w4a16", f"{name} {out} x {columns}, {rows} rows", prepare)


def fp8(name: str, rows: int, out: int, columns: int) -> Case:
    def prepare(device: torch.device) -> Prepared:
        weight, scales = _fp8(out, columns, device)
        x = random(rows, columns, device=device)
        return Prepared(
            run=lambda: fp8_linear(x, weight, scales, BLOCK),
            reference=lambda: fp8_naive.fp8_linear_w8a8(x, weight, scales, BLOCK),
            moved=weight.nbytes + scales.nbytes + x.nbytes + 2 * rows * out,
            operations=2 * rows * out * columns,
            precision="fp8",
        )

    return Case("fp8_linear", f"{name} {out} x {columns}, {rows} rows", prepare)


def fp4(name: str, rows: int, out: int, columns: int) -> Case:
    def prepare(device: torch.device) -> Prepared:
        codes = torch.randint(0, 256, (out, columns // 2), device=device, dtype=torch.uint8)
        scales = (torch.rand(out, columns // 16, device=device) + 0.5).to(torch.float8_e4m3fn)
        factors = torch.full((out,), columns**-0.5 / 3, device=device)
        x = random(rows, columns, device=device)
        return Prepared(
            run=lambda: fp4_linear(x, codes, scales, factors),
            reference=lambda: fp4_naive.fp4_linear(x.float(), codes, scales, factors),
            moved=codes.nbytes + scales.nbytes + x.nbytes + 2 * rows * out,
            operations=2 * rows * out * columns,
        )

    return Case("fp4_linear", f"{name} {out} x {columns}, {rows} rows", prepare)


def expert_layer(shape: ExpertShape, rows: int, form: str, *, group: int = 32) -> Case:
    def prepare(device: torch.device) -> Prepared:
        layer = ExpertLayer(
            gate_up=_experts(form, shape.experts, 2 * shape.inner, shape.hidden, group, device),
            down=_experts(form, shape.experts, shape.hidden, shape.inner, group, device),
        )
        x = random(rows, shape.hidden, device=device)
        weights, ids = torch.rand(rows, shape.experts, device=device).topk(shape.chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        busy = int((ids.flatten().bincount() > 0).sum())
        plain = experts_naive.experts_w8a8 if form == "fp8" else experts_naive.experts
        stored = _bytes(layer.gate_up) + _bytes(layer.down)
        return Prepared(
            run=lambda: experts(x, ids, weights, layer),
            reference=lambda: plain(x, ids, weights, layer),
            moved=stored * busy // shape.experts + 2 * x.nbytes,
            operations=2 * rows * shape.chosen * 3 * shape.inner * shape.hidden,
            tolerance=4e-2,  # both round between the two products
            precision="fp8" if form == "fp8" else "bf16",
        )

    return Case("experts", f"{shape.name}, {form}, {rows} rows", prepare)


def _experts(form: str, count: int, out: int, columns: int, group: int, device: torch.device) -> Experts:
    if form == "int4":
        packed, scales = _int4(count * out, columns, group, device)
        return Int4Experts(packed.view(count, out, -1), scales.view(count, out, -1))
    if form == "fp8":
        weight, scales = _fp8(count * out, columns, device)
        return Fp8Experts(
            weight.view(count, out, -1), scales.view(count, -1, scales.shape[1]).contiguous(), BLOCK
        )
    return DenseExperts(random(count, out, columns, device=device) * columns**-0.5)


def _int4(out: int, columns: int, group: int, device: torch.device) -> tuple[Tensor, Tensor]:
    packed = torch.randint(-(2**31), 2**31 - 1, (out, columns // 8), device=device, dtype=torch.int32)
    scales = (torch.rand(out, columns // group, device=device) + 0.5) * (columns**-0.5 / 5)
    return packed, scales.bfloat16()


def _fp8(out: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    weight = torch.randn(out, columns, device=device).to(torch.float8_e4m3fn)
    blocks = -(-out // BLOCK[0]), -(-columns // BLOCK[1])
    return weight, (torch.rand(blocks, device=device) + 0.5) * columns**-0.5


def _bytes(matrix: Experts) -> int:
    parts = (getattr(matrix, field.name) for field in fields(matrix))
    return sum(part.nbytes for part in parts if isinstance(part, Tensor))
