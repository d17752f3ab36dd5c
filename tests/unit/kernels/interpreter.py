"""What Triton 3.7's interpreter gets wrong: casts and arithmetic of narrow floats, done by PyTorch, and NaN.

Its casts to e4m3 and bfloat16 lose the carry of a rounding (124 becomes 64) or truncate, and it adds and multiplies the
bits of bfloat16 as integers and has no constants of it. Of NaN and a number its minimum is NaN, a GPU's the number.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from triton.runtime import interpreter

_FLOATS = {
    tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8),
    tl.bfloat16: (torch.bfloat16, torch.int16),
    tl.float16: (torch.float16, torch.int16),
    tl.float32: (torch.float32, torch.int32),
}


def _convert(
    values: npt.NDArray[Any], source: tl.dtype, target: tl.dtype, _rounding: object
) -> npt.NDArray[Any]:
    """Bits of `target`, of the shape of `values`, rounded to nearest even."""
    (from_type, _), (to_type, bits) = _FLOATS[source], _FLOATS[target]
    tensor = torch.frombuffer(bytearray(values.tobytes()), dtype=from_type)
    return tensor.to(to_type).view(bits).numpy().view(f"u{bits.itemsize}").reshape(values.shape)


def _wide(operand: interpreter.TensorHandle) -> interpreter.TensorHandle:
    if operand.dtype.scalar not in (tl.bfloat16, tl.float8e4nv):
        return operand
    bits = _convert(operand.data, operand.dtype.scalar, tl.float32, None)
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)


def repair() -> None:
    """Replace them, for this process."""
    multiply, combine = interpreter.InterpreterBuilder.create_dot, interpreter.InterpreterBuilder.binary_op

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, _wide(a), _wide(b), *rest)

    def binary_op(self: Any, left: Any, right: Any, operation: Any) -> Any:
        result = combine(self, _wide(left), _wide(right), operation)
        if left.dtype.scalar != tl.bfloat16:
            return result
        bits = _convert(result.data, tl.float32, tl.bfloat16, None)
        return interpreter.TensorHandle(bits, tl.bfloat16)

    def get_bf16(_self: Any, value: float) -> Any:
        bits = _convert(np.array([value], np.float32), tl.float32, tl.bfloat16, None)
        return interpreter.TensorHandle(bits, tl.bfloat16)

    def min_number(self: Any, left: Any, right: Any) -> Any:
        return self.binary_op(left, right, np.fmin)

    def max_number(self: Any, left: Any, right: Any) -> Any:
        return self.binary_op(left, right, np.fmax)

    interpreter._convert_float = _convert
    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter.InterpreterBuilder.binary_op = binary_op
    interpreter.InterpreterBuilder.get_bf16 = get_bf16
    interpreter.InterpreterBuilder.create_minnumf = min_number
    interpreter.InterpreterBuilder.create_maxnumf = max_number
