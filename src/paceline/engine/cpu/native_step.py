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
from paceline.engine.masks import Masks
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
        # What `_call` says, and points to.
        self._step: Step | None = None
        self._samplings: Sequence[Sampling | None] = ()
        self._masks: Masks | None = None
        self._draws: ctypes.Array[PlDraw] = (PlDraw * 0)()
        self._drawn: Int32 = np.empty(0, dtype=np.int32)
        self._left: list[int] = []  # rows whose logits are asked for
        self._call = PlStep()
        self._engine = library.pl_open(ctypes.byref(model), threads)
        if self._engine is None:
            raise MemoryError(f"no memory for the cpu engine, or not {threads} threads")
        library.pl_bind(self._engine, _address(pages), len(pages), layout.page_bytes)

    def logits(self, step: Step) -> Float32:
        """Logits [R, vocab], the caller's own."""
        logits: Float32 = np.empty((len(step.logit_rows), self._vocab), dtype=np.float32)
        self._library.pl_step(self._engine, self._describe_step(step, logits, None, None))
        return logits

    def draw(
        self, step: Step, samplings: Sequence[Sampling | None], masks: Masks | None
    ) -> list[Float32 | int]:
        """The token of each row that has a `Sampling`, -1 where there is no distribution; of others the logits, which
        the next step overwrites."""
        # A step that is carried on keeps its arrays, and with them all that was said of them: 2 us instead of 50, and
        # a multiple of both behind weights that left nothing in the cache.
        if step is not self._step or samplings is not self._samplings or masks is not self._masks:
            self._prepare(step, samplings, masks)
        self._library.pl_step(self._engine, self._call)
        tokens: list[Float32 | int] = self._drawn.tolist()
        for row in self._left:
            tokens[row] = self._logits[row]
        return tokens

    def _prepare(self, step: Step, samplings: Sequence[Sampling | None], masks: Masks | None) -> None:
        rows = len(step.logit_rows)
        if len(self._logits) < rows:
            self._logits = np.empty((rows, self._vocab), dtype=np.float32)
        self._draws = (PlDraw * rows)(*map(_describe, samplings))
        if masks is not None:
            first, stride = _address(masks.bits), masks.bits.strides[0]
            for i, row in enumerate(masks.rows):
                self._draws[row].mask = first + i * stride
        self._drawn = np.empty(rows, dtype=np.int32)
        self._left = [row for row, sampling in enumerate(samplings) if sampling is None]
        self._step, self._samplings, self._masks = step, samplings, masks
        self._call = self._describe_step(step, self._logits, self._draws, self._drawn)

    def _describe_step(
        self, step: Step, logits: Float32, draws: "ctypes.Array[PlDraw] | None", drawn: Int32 | None
    ) -> PlStep:
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
        return PlStep(
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

    def close(self) -> None:
        if self._engine is not None:
            self._library.pl_close(self._engine)
            self._engine = None


def _describe(sampling: Sampling | None) -> PlDraw:
    if sampling is None:
        return PlDraw()
    s = sampling
    return PlDraw(s.temperature, s.top_p, s.min_p, s.seed % (1 << 64), max(s.top_k, 0), 1)


def _address(array: npt.NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("the arrays of a step must be contiguous")
    # A fourth of the time of `array.ctypes.data`, which makes an object.
    address: int = array.__array_interface__["data"][0]
    return address
