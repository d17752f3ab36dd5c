"""Pages in the memory of a GPU, and the way between them and the host's, which others read and write."""

from collections.abc import Iterable
from contextlib import suppress

import torch
from torch import Tensor

from paceline.engine.interface import Pages


class DevicePages:
    """`pages` uint8 [pages, page_bytes] on `device`: page p belongs to page p of the host's pool."""

    def __init__(self, host: Pages, device: torch.device) -> None:
        self._host = torch.from_numpy(host)
        self.pages = torch.zeros(host.shape, dtype=torch.uint8, device=device)
        self._pinned = device.type == "cuda" and _pin(self._host, device)

    def to_host(self, pages: Iterable[int]) -> None:
        """Copy `pages` into the host's pool; they are there when this returns."""
        self._copy(self.pages, self._host, pages)

    def from_host(self, pages: Iterable[int]) -> None:
        """Copy `pages` from the host's pool, whose bytes may change when this returns."""
        self._copy(self._host, self.pages, pages)

    def close(self) -> None:
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._host.data_ptr())  # type: ignore[no-untyped-call]
            self._pinned = False

    def _copy(self, source: Tensor, target: Tensor, pages: Iterable[int]) -> None:
        for page in pages:
            target[page].copy_(source[page], non_blocking=self._pinned)
        if self._pinned:
            torch.cuda.current_stream(self.pages.device).synchronize()


def _pin(host: Tensor, device: torch.device) -> bool:
    """Lock the host's pages in memory, so that the GPU copies them by itself; they are copied more slowly otherwise."""
    status = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, 0)  # type: ignore[no-untyped-call]
    if int(status) == 0:
        return True
    with suppress(RuntimeError):
        # CUDA reports a failed call once more with the next kernel, whichever that is.
        torch.zeros(1, device=device)
    return False
