"""How many pages a worker takes: decided once, before the first request."""

from pathlib import Path

from paceline.contracts.errors import InvalidRequest
from paceline.engine.layout import PageLayout

_MIN_PAGES = 4


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    for row in Path("/proc/meminfo").read_text().splitlines():
        if row.startswith("MemAvailable:"):
            return int(row.split()[1]) * 1024
    raise InvalidRequest("/proc/meminfo has no MemAvailable")


def plan_pages(
    layout: PageLayout, wanted_bytes: int, free_bytes: int, device_bytes: int | None = None
) -> int:
    """Pages of all groups together in `wanted_bytes`, or in a quarter of `free_bytes` where that is less.

    An engine with a memory of its own has as many pages there as the host, so that `device_bytes` bound them too.

    Raises `InvalidRequest` when that is no useful pool.
    """
    most = min(wanted_bytes, free_bytes // 4)
    pages = (most if device_bytes is None else min(most, device_bytes)) // layout.page_bytes
    least = _MIN_PAGES * len(layout.groups)
    if pages < least:
        raise InvalidRequest(
            f"a page needs {layout.page_bytes} bytes; {wanted_bytes} wanted and {free_bytes} free bytes"
            f"{'' if device_bytes is None else f', {device_bytes} for pages on the device,'} hold {pages} pages, at "
            f"least {least} are needed",
            param="PACELINE_KV_BYTES",
        )
    return pages
