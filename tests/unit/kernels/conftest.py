"""Triton kernels run in its interpreter here: `triton.jit` decides for it when it decorates, by this variable."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import sys

from triton.runtime import JITFunction
from triton.runtime.interpreter import InterpretedFunction

from tests.unit.kernels import interpreter

# An earlier test's transformers may have imported Triton, whose own functions (`tl.sum`) were then made for a GPU.
for module in [module for name, module in sys.modules.items() if name.startswith("triton.language")]:
    for name, function in list(vars(module).items()):
        if isinstance(function, JITFunction):
            setattr(module, name, InterpretedFunction(function.fn))

interpreter.repair()
