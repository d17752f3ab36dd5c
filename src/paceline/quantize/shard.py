"""One output file: the work of all of its tensors, done by all processors."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paceline.quantize.errors import Errors
from paceline.quantize.format import UInt8
from paceline.quantize.tensors import OutputTensor, lay_out
from paceline.quantize.work import Work


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of the checkpoint."""

    name: str
    works: tuple[Work, ...]

    @property
    def tensors(self) -> tuple[OutputTensor, ...]:
        return tuple(tensor for work in self.works for tensor in work.outputs)

    @property
    def source_bytes(self) -> int:
        return sum(work.source_bytes for work in self.works)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors; the header comes on top."""
        return sum(tensor.nbytes for tensor in self.tensors)


def write_shard(shard: Shard, path: Path, threads: int, advance: Callable[[int], None]) -> tuple[Errors, ...]:
    """Write all of `shard` to `path`, on disk when this returns; gives the errors of each of its works.

    `advance` is called with bytes of the source that were done. Raises `OSError`, at once where the disk has too little
    space, and what the pieces raise; nothing writes any more then.
    """
    header, offsets = lay_out(shard.tensors)
    pieces = [(owner, piece) for owner, work in enumerate(shard.works) for piece in work.pieces()]
    errors: list[list[Errors]] = [[] for _ in shard.works]
    # The executor is left first: no piece may write to a descriptor that is closed.
    with path.open("wb") as file, ThreadPoolExecutor(threads) as executor:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, len(header) + shard.nbytes)
        _write_at(descriptor, memoryview(header), 0)

        def write(name: str, offset: int, data: UInt8) -> None:
            _write_at(descriptor, data.reshape(-1).data, offsets[name] + offset)

        try:
            for (owner, _), done in zip(pieces, executor.map(lambda p: p[1](write), pieces), strict=True):
                errors[owner].append(done.errors)
                advance(done.source_bytes)
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
        os.fsync(descriptor)
    return tuple(Errors.sum(parts) for parts in errors)


def _write_at(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
