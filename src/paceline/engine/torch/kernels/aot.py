"""Compile Triton kernels for an H100 or H200 (sm_90) on a machine that has none, and read what the compiler made.

Each `kernels/<op>/triton.py` ends with the specialisations that its launcher meets in practice:

    AOT = (
        Specialisation(
            kernel=_decode,
            signature={"q": "*bf16:16", "contexts": "*i32:16", "scale": "fp32", "page_stride": "i64:16", "rows": "i32"},
            constants={"BLOCK": 64},
            num_warps=4,
        ),
    )

`python -m paceline.engine.torch.kernels.aot paged_attention w4a16` compiles those of the named operations and prints
one JSON object per kernel. TRITON_INTERPRET must not be set in that process, since a kernel that is decorated for the
interpreter cannot be compiled.
"""

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that one thread block may have on sm_90."""

_SM90 = GPUTarget("cuda", 90, 32)


@dataclass(frozen=True, slots=True)
class Specialisation:
    """One way in which a kernel is compiled.

    signature: type of each argument that is no constant, by name: `*bf16`, `*fp8e4nv`, `i32`, `fp32`, ... A `:16`
        behind it promises a pointer or integer that is divisible by 16, which wide loads need and which Triton finds
        out by itself at a real launch.
    constants: the other arguments; also what is 1 at launch (a stride, say) belongs here, as Triton makes it constant.
    """

    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, object]
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True, slots=True)
class Report:
    """What one thread block of a compiled kernel takes.

    registers: per thread; 255 is the most that there is
    spills_bytes: stack frame per thread. Triton's kernels keep nothing there but spilled registers.
    shared_bytes: per thread block
    tensor_core_ops: mma and wgmma instructions in the PTX
    """

    kernel: str
    registers: int
    spills_bytes: int
    shared_bytes: int
    tensor_core_ops: int
    constants: Mapping[str, object] = field(default_factory=dict)


def compile_sm90(wanted: Specialisation) -> Report:
    """Raises `ValueError` when signature and constants do not name each argument of the kernel once."""
    names: list[str] = wanted.kernel.arg_names
    if sorted([*wanted.signature, *wanted.constants]) != sorted(names):
        odd = set(names) ^ (set(wanted.signature) | set(wanted.constants)) or "an argument named twice"
        raise ValueError(f"{wanted.kernel.__name__}: signature and constants do not fit the arguments: {odd}")
    types = {name: wanted.signature.get(name, "constexpr") for name in names}
    divisible = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if types[name].endswith(":16")
    }
    source = ASTSource(
        fn=wanted.kernel,
        signature={name: kind.removesuffix(":16") for name, kind in types.items()},
        constexprs=dict(wanted.constants),
        attrs=divisible,
    )
    options = {"num_warps": wanted.num_warps, "num_stages": wanted.num_stages}
    compiled = triton.compile(source, target=_SM90, options=options)
    registers, stack = _resources(compiled.asm["cubin"])
    return Report(
        kernel=wanted.kernel.__name__,
        registers=registers,
        spills_bytes=stack,
        shared_bytes=compiled.metadata.shared,
        tensor_core_ops=len(re.findall(r"\b(?:wgmma\.mma_async|mma)\.sync", compiled.asm["ptx"])),
        constants=dict(wanted.constants),
    )


def specialisations(operation: str) -> tuple[Specialisation, ...]:
    """Those of `kernels/<operation>/triton.py`."""
    found: tuple[Specialisation, ...] = importlib.import_module(f"{__package__}.{operation}.triton").AOT
    return found


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack per thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise ValueError(f"no resource usage in what cuobjdump said: {usage!r}")
    return int(found[1]), int(found[2])


def main(operations: list[str]) -> None:
    for operation in operations:
        for wanted in specialisations(operation):
            report = {"operation": operation, **asdict(compile_sm90(wanted))}
            sys.stdout.write(json.dumps(report, default=str) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
