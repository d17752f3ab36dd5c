"""What weights take: all of them, and what one rank has."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from paceline.contracts.errors import InvalidRequest
from paceline.planner.mix import Mix
from paceline.planner.parallel import Parallel
from paceline.planner.tensors import Kind, Tensor


@dataclass(frozen=True, slots=True)
class KindRow:
    """All tensors of one kind: their parameters, bytes, and precisions with the bytes in each."""

    kind: Kind
    parameters: int
    bytes: int
    bytes_per_gpu: int
    precisions: tuple[str, ...]


def whole_bytes(tensor: Tensor, mix: Mix) -> int:
    return tensor.copies * mix.precision(tensor).bytes(tensor.rows, tensor.columns)


def local_bytes(tensors: Iterable[Tensor], mix: Mix, parallel: Parallel) -> int:
    """Of what one rank has of `tensors`."""
    total = 0
    for tensor in tensors:
        copies, rows, columns = parallel.local(tensor)
        total += copies * mix.precision(tensor).bytes(rows, columns)
    return total


def check_slices(tensors: Iterable[Tensor], mix: Mix, parallel: Parallel) -> None:
    """Values that share a scale stay together. Raises `InvalidRequest` for a tensor that is cut between some."""
    for tensor in tensors:
        precision = mix.precision(tensor)
        _, rows, columns = parallel.local(tensor)
        size, block = (rows, precision.rows) if tensor.cut == "rows" else (columns, precision.columns)
        whole = tensor.rows if tensor.cut == "rows" else tensor.columns
        if tensor.cut and size < whole and size % block:
            raise InvalidRequest(
                f"tensor parallelism cuts {tensor.module} into {size} {tensor.cut}, of which {block} share a scale"
            )


def by_kind(
    served: Iterable[Tensor], fullest: list[Tensor], mix: Mix, parallel: Parallel
) -> Iterator[KindRow]:
    rows: dict[Kind, list[Tensor]] = {}
    for tensor in served:
        rows.setdefault(tensor.kind, []).append(tensor)
    for kind, tensors in rows.items():
        # Precisions in the order of what they take.
        sizes: dict[str, int] = {}
        for tensor in tensors:
            name = mix.precision(tensor).name
            sizes[name] = sizes.get(name, 0) + whole_bytes(tensor, mix)
        yield KindRow(
            kind,
            sum(tensor.parameters for tensor in tensors),
            sum(sizes.values()),
            local_bytes((tensor for tensor in fullest if tensor.kind == kind), mix, parallel),
            tuple(sorted(sizes, key=sizes.__getitem__, reverse=True)),
        )
