"""Copies of pages between two processes' arenas, against a plain copy of the same memory.

python -m bench.transport [--quick] [--json FILE]
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.rows import Row, arguments, report
from paceline.contracts.messages import PageRef
from paceline.transport.arena import Arena
from paceline.transport.shm import ShmTransport

PAGE_BYTES = 30 * 2 * 3 * 64 * 64 * 2  # SmolLM2-135M, 64 tokens in bfloat16
PAGES = 64


def rates(copy: Callable[[], None], repeat: int) -> list[float]:
    """GB/s of each of `repeat` copies of all pages."""
    found = []
    for _ in range(repeat):
        began = time.perf_counter()
        copy()
        found.append(PAGES * PAGE_BYTES / (time.perf_counter() - began) / 1e9)
    return found


async def measure(repeat: int) -> list[Row]:
    source = np.random.default_rng(0).integers(0, 255, (PAGES, PAGE_BYTES), dtype=np.uint8)
    config: dict[str, str | int | float | bool] = {"page_bytes": PAGE_BYTES, "pages": PAGES}
    with tempfile.TemporaryDirectory() as directory:
        arena = Arena.create(PAGES, PAGE_BYTES)
        owner = ShmTransport(arena, Path(directory), "owner", "1")
        peer = ShmTransport(None, Path(directory), "peer", "1")
        await owner.start()
        remote = await peer.connect(owner.params)
        refs = [PageRef(page, int(arena.tags[page])) for page in range(PAGES)]
        pages, out = list(source), list(np.empty_like(source))
        first = rates(lambda: remote.write(refs, pages), 1)
        writes = rates(lambda: remote.write(refs, pages), repeat)
        assert (arena.pages == source).all()
        reads = rates(lambda: remote.read(refs, out), repeat)
        plain = rates(lambda: np.copyto(arena.pages, source), repeat)
        await peer.close()
        await owner.close()
        arena.close()
    return [
        Row.of("shm", config, "first_write", first, "GB/s"),
        Row.of("shm", config, "write", writes, "GB/s"),
        Row.of("shm", config, "read", reads, "GB/s"),
        Row.of("plain copy", config, "copy", plain, "GB/s"),
        Row.of("shm / plain copy", config, "write", [float(np.median(writes) / np.median(plain))], "x"),
    ]


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    rows = asyncio.run(measure(5 if options.quick else 30))
    report(rows, "transport", options.json)


if __name__ == "__main__":
    main()
