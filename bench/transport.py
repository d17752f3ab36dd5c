"""Copies of pages between two processes' arenas, and their rewriting in FP8, against a plain copy of the same memory.

python -m bench.transport [--quick] [--json FILE]
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.rows import Row, arguments, report
from paceline.contracts.messages import PageRef
from paceline.engine.convert import PageConverter
from paceline.engine.layout import KvDtype, PageGroup, PageLayout, Plane
from paceline.engine.profile import KvProfile, scales_of
from paceline.model.floats import encode_bfloat16
from paceline.transport.arena import Arena
from paceline.transport.shm import ShmTransport

LAYERS = 30
PLANES = tuple(Plane(layer, "kv", heads=2 * 3, dim=64, format="bfloat16") for layer in range(LAYERS))
LAYOUT = PageLayout((PageGroup(PLANES),))  # SmolLM2-135M
PAGE_BYTES = LAYOUT.page_bytes
PAGES = 64


def rates(copy: Callable[[], None], repeat: int) -> list[float]:
    """GB/s of each of `repeat` copies of all pages."""
    found = []
    for _ in range(repeat):
        began = time.perf_counter()
        copy()
        found.append(PAGES * PAGE_BYTES / (time.perf_counter() - began) / 1e9)
    return found


def conversions(source: npt.NDArray[np.uint8], dtype: KvDtype, repeat: int) -> list[float]:
    """GB/s, of bfloat16, at which pages become `dtype`."""
    bfloat16 = KvProfile(b"bench", "bfloat16", LAYOUT)
    needed = sum(scales_of(plane) for plane in LAYOUT.stored_as(dtype).groups[0].planes)
    converter = PageConverter(bfloat16, bfloat16.stored_as(dtype, (0.01,) * needed))
    converter.convert(0, source[0])  # makes its tables

    def convert() -> None:
        for page in source:
            converter.convert(0, page)

    return rates(convert, repeat)


async def measure(repeat: int) -> list[Row]:
    values = np.random.default_rng(0).standard_normal((PAGES, PAGE_BYTES // 2), dtype=np.float32)
    source = encode_bfloat16(values).view(np.uint8)
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
        per_layer = conversions(source, "fp8_e4m3", repeat)
        per_token = conversions(source, "fp8_per_token_head", 3)
        await peer.close()
        await owner.close()
        arena.close()
    return [
        Row.of("shm", config, "first_write", first, "GB/s"),
        Row.of("shm", config, "write", writes, "GB/s"),
        Row.of("shm", config, "read", reads, "GB/s"),
        Row.of("bfloat16 to fp8_e4m3", config, "convert", per_layer, "GB/s"),
        Row.of("bfloat16 to fp8_per_token_head", config, "convert", per_token, "GB/s"),
        Row.of("plain copy", config, "copy", plain, "GB/s"),
        Row.of("shm / plain copy", config, "write", [float(np.median(writes) / np.median(plain))], "x"),
    ]


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    rows = asyncio.run(measure(5 if options.quick else 30))
    report(rows, "transport", options.json)


if __name__ == "__main__":
    main()
