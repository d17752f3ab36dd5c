"""Which files a checkpoint consists of, and what each of their tensors is made from."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.quantized.patterns import Patterns
from paceline.quantize.format import Format
from paceline.quantize.options import Options
from paceline.quantize.selection import Selection
from paceline.quantize.shard import Shard
from paceline.quantize.source import FLOATS, FP8, Source
from paceline.quantize.tensors import OutputTensor
from paceline.quantize.work import Copy, Matrix, Quantize, Widen, Work

_WEIGHT = ".weight"
# Beside an e4m3 weight; the scale of static activations belongs to arithmetic that the result is not for.
_SCALES = (".weight_scale_inv", ".weight_scale", ".input_scale")


@dataclass(frozen=True, slots=True)
class Plan:
    """The files in their order, and why each matrix that is not quantized stays as it is, by module."""

    shards: tuple[Shard, ...]
    kept: dict[str, str]


def make_plan(source: Source, options: Options) -> Plan:
    """The plan depends on nothing but the source and the options. Raises `InvalidRequest` for a source that cannot be
    quantized, or in which nothing is left to be."""
    planner = _Planner(
        source, options.format(), Selection.of(options.keep, experts_only=options.experts_only)
    )
    works = list(planner.works())
    if not any(isinstance(work, Quantize) for work in works):
        raise InvalidRequest(f"{source.directory}: no matrix is left to be quantized")
    _check_names(source, works)
    planner.check_keep(options.keep)
    groups = list(_fill(works, options.shard_bytes))
    shards = tuple(
        Shard(f"model-{i:05}-of-{len(groups):05}.safetensors", tuple(group))
        for i, group in enumerate(groups, 1)
    )
    return Plan(shards, planner.kept)


def _check_names(source: Source, works: list[Work]) -> None:
    """What is made of a matrix may be called as another tensor is. Raises `InvalidRequest`."""
    counts = Counter(tensor.name for work in works for tensor in work.outputs)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InvalidRequest(f"{source.directory}: tensor {twice[0]} would be there twice in the result")


class _Planner:
    """Decides about each tensor of the source in turn."""

    def __init__(self, source: Source, format_: Format, selection: Selection) -> None:
        self._source = source
        self._format = format_
        self._selection = selection
        self.kept: dict[str, str] = {}

    def check_keep(self, patterns: tuple[str, ...]) -> None:
        """Raises `InvalidRequest` for a pattern that keeps nothing: it is misspelt, and would cost a night."""
        for pattern in patterns:
            alone = Patterns.parse([pattern], Path("--keep"))
            if not any(alone.match(module) for module in self.kept):
                raise InvalidRequest(f"--keep {pattern} matches no matrix of {self._source.directory}")

    def works(self) -> Iterator[Work]:
        for name in self._source.names():
            if self._belongs_to_fp8(name):
                continue
            array = self._source.array(name)
            dimensions = array.values.ndim if array.dtype in (*FLOATS, FP8) and array.values.size else 0
            if dimensions == 2 and name.endswith(_WEIGHT):
                module = name.removesuffix(_WEIGHT)
                yield self._matrix(module, self._source.matrix(module), f"{array.path}: tensor {name}")
            elif dimensions == 3 and ".experts." in name:
                yield from self._fused(name)
            else:
                yield self._copy(name)

    def _matrix(self, module: str, matrix: Matrix, origin: str) -> Work:
        """`origin` names file and tensor in errors."""
        name = module + _WEIGHT
        rows, columns = matrix.shape
        reason = self._selection.reason_to_keep(module) or self._format.obstacle((rows, columns))
        if reason is None:
            return Quantize(module, matrix, self._format, origin)
        self.kept[module] = reason
        return self._copy(name) if self._source.dtype(name) in FLOATS else Widen(module, matrix)

    def _fused(self, name: str) -> Iterator[Work]:
        if self._selection.keep.match(name):
            self.kept[name] = "asked for"
            yield self._copy(name)
        elif (experts := self._source.experts(name)) is None:
            raise self._source.array(name).refuse(
                "holds all experts of a layer, which the format has no name for; --keep leaves it as it is"
            )
        else:
            path = self._source.array(name).path
            yield from (self._matrix(m, matrix, f"{path}: tensor {name}, of {m},") for m, matrix in experts)

    def _copy(self, name: str) -> Work:
        array = self._source.array(name)
        output = OutputTensor(name, array.dtype, array.values.shape)
        return Copy(name.rpartition(".")[0], output, array.values.reshape(-1).view(np.uint8))

    def _belongs_to_fp8(self, name: str) -> bool:
        module, _, last = name.rpartition(".")
        return f".{last}" in _SCALES and self._source.dtype(module + _WEIGHT) == FP8


def _fill(works: list[Work], limit: int) -> Iterator[list[Work]]:
    """Cut `works` where another one would exceed `limit` bytes; what exceeds it alone is alone."""
    group: list[Work] = []
    size = 0
    for work in works:
        nbytes = sum(tensor.nbytes for tensor in work.outputs)
        if group and size + nbytes > limit:
            yield group
            group, size = [], 0
        group.append(work)
        size += nbytes
    yield group
