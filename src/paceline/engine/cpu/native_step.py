"""One native engine: a packed model over pages, and the arrays of its steps."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.contracts.messages import Sampling
from paceline.engine.cpu.library import PlDraw, PlKv, PlModel, PlStep
from paceline.engine.interface import Pages
from paceline.engine.layout import KvDtype, PageLayout
from paceline.engine.philox import uniform
from paceline.engine.step import Float32, Int32, Step

_KV: dict[KvDtype, PlKv] = {
    "float32": PlKv.F32,
    "bfloat16": PlKv.BF16,
    "fp8_e4m3": PlKv.E4M3,
    "fp8_per_token_head": PlKv.E4M3_SCALED,
}


class NativeStep:
    """Runs steps of `model` over `pages`, whose order is `layout`.

    `scales` are those of keys and values of each layer in `fp8_e4m3`; none for other forms. `model` and all that it
    points to must live as long as this.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        model: PlModel,
        pages: Pages,
        layout: PageLayout,
        kv_dtype: KvDtype,
        scales: Sequence[float],
        threads: int,
    ) -> None:
        if pages.shape[1:] != (layout.page_bytes,) or not pages.flags.c_contiguous:
            raise ValueError(
                f"pages of {layout.page_bytes} bytes are expected, not an array of {pages.shape}"
            )
        model.kv = _KV[kv_dtype]
        for i, (_, offset, plane) in enumerate(layout.planes()):
            layer = model.layer[plane.layer]
            layer.plane = offset
            layer.k_scale, layer.v_scale = scales[2 * i : 2 * i + 2] if scales else (1.0, 1.0)
        self._library = library
        self._vocab = int(model.vocab)
        self._pages = pages  # native code keeps their address
        self._logits: Float32 = np.empty((0, self._vocab), dtype=np.float32)
        self._engine = library.pl_open(ctypes.byref(model), threads)
        if self._engine is None:
            raise MemoryError(f"no memory for the cpu engine, or not {threads} threads")
        library.pl_bind(self._engine, _address(pages), len(pages), layout.page_bytes)

    def logits(self, step: Step) -> Float32:
        """Logits [R, vocab], the caller's own."""
        logits: Float32 = np.empty((len(step.logit_rows), self._vocab), dtype=np.float32)
        self._run(step, logits, None, None)
        return logits

    def draw(self, step: Step, samplings: Sequence[Sampling | None]) -> list[Float32 | int]:
        """The token of each row that has a `Sampling`, -1 where there is no distribution; of others the logits, which
        the next step overwrites."""
        rows = len(step.logit_rows)
        if len(self._logits) < rows:
            self._logits = np.empty((rows, self._vocab), dtype=np.float32)
        draws = (PlDraw * rows)()
        positions = step.positions[step.logit_rows].tolist()
        for draw, sampling, position in zip(draws, samplings, positions, strict=True):
            if sampling is not None:
                _describe(draw, sampling, position)
        drawn: Int32 = np.empty(rows, dtype=np.int32)
        self._run(step, self._logits, draws, drawn)
        return [
            self._logits[row] if sampling is None else token
            for row, (sampling, token) in enumerate(zip(samplings, drawn.tolist(), strict=True))
        ]

    def _run(
        self, step: Step, logits: Float32, draws: "ctypes.Array[PlDraw] | None", drawn: Int32 | None
    ) -> None:
        table, moves = step.page_table[0], step.moves[0]
        arrays = (
            step.tokens,
            step.positions,
            step.slots[0],
            step.parents,
            step.query_starts,
            step.contexts,
            table,
            step.logit_rows,
            moves,
            logits,
        )
        native = PlStep(
            len(step.tokens),
            step.sequences,
            len(step.logit_rows),
            table.shape[1],
            len(moves),
            0,
            *map(_address, arrays),
            None if draws is None else ctypes.addressof(draws),
            None if drawn is None else _address(drawn),
        )
        self._library.pl_step(self._engine, native)

    def close(self) -> None:
        if self._engine is not None:
            self._library.pl_close(self._engine)
            self._engine = None


def _describe(draw: PlDraw, sampling: Sampling, position: int) -> None:
    draw.wanted = 1
    draw.temperature = sampling.temperature
    if sampling.temperature > 0.0:
        draw.top_p, draw.min_p, draw.top_k = sampling.top_p, sampling.min_p, max(sampling.top_k, 0)
        draw.u = uniform(sampling.seed, position)


def _address(array: npt.NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("the arrays of a step must be contiguous")
    # A fourth of the time of `array.ctypes.data`, which makes an object.
    address: int = array.__array_interface__["data"][0]
    return address
