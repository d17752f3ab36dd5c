"""Moving KV pages between workers of one host without a message carrying their bytes."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.errors import IntegrityError
from paceline.contracts.messages import PageRef, TransferParams

Bytes: TypeAlias = npt.NDArray[np.uint8]
"""uint8 [page_bytes], C-contiguous: the bytes of one page."""


class StalePage(IntegrityError):
    """A page does not bear the tag that the reference to it recorded: it was freed or allocated again
    since.
    """

    def __init__(self, page: int, expected: int, found: int | None) -> None:
        """`found` is None for a page that the arena does not have."""
        state = "is not in the arena" if found is None else f"bears tag {found:#x}"
        super().__init__(f"page {page} {state}, the reference says {expected:#x}")
        self.page = page


class RemotePages(Protocol):
    """Another worker's page pool, mapped. `write` and `read` block for as long as the copy takes and
    release the GIL meanwhile: call them in a thread. Several threads may use one mapping.
    """

    def write(self, refs: Sequence[PageRef], pages: Sequence[Bytes]) -> None:
        """Copy each of `pages` into the page that the reference of the same index names.

        The tag is compared before and after each copy. A mismatch before means that nothing was written to
        that page. A mismatch after means that the owner reassigned the page during the copy, so that bytes
        may have landed in somebody else's page: the owner prevents this by quarantining a page while a
        writer may be active, and this check detects the owner that did not.

        Raises `StalePage`, with earlier pages already copied; `Unavailable` when the owner is gone or the
        mapping is closed; `ProtocolError` for a page of another size.
        """

    def read(self, refs: Sequence[PageRef], out: Sequence[Bytes]) -> None:
        """Copy the pages that `refs` name into `out`; whatever `out` holds after an error is meaningless.

        Tags are compared before and after each copy, so that what it returns was one page's bytes throughout.
        Raises as `write`.
        """

    def close(self) -> None:
        """Unmap. Copies that run in other threads finish first; the owner hears of the end only then.

        Comes from the event loop, unlike the copies. Idempotent.
        """


class Transport(Protocol):
    """One worker's access to the pages of others, and theirs to its own.

    Its life:

    1. The constructor takes the worker's own arena, or None for a worker that only reads and writes others'
       pages.
    2. `start` makes the arena reachable under `params`, which the worker puts into its messages (`Admit`,
       `Lease`).
    3. A peer `connect`s to these params once and keeps the mapping for all of its transfers.
    4. When the peer closes the mapping or its process ends, the callbacks of `on_peer_lost` run: from then
       on no byte of that peer can land in the arena, and pages quarantined for its sake may be freed.
    5. `recall` brings that end about for a peer that is late with pages of which it should have let go.
    6. `close` withdraws the arena and closes every mapping of other workers' pages. Peers that still have
       the arena mapped may touch it without harm, as its memory lives until the last of them lets go.

    A page is named by `PageRef(page, tag)`. Only the owner writes tags: it changes a page's tag at each
    allocation and each free, never to a value that the page bore before.
    """

    @property
    def params(self) -> TransferParams:
        """How others reach this worker's arena. Raises `Unavailable` when it has none."""

    async def start(self) -> None: ...

    async def connect(self, params: TransferParams) -> RemotePages:
        """Map a worker's pages. The same mapping is returned for the same params while its owner lives.

        Raises `Unavailable` when the owner is gone, serves another incarnation by now, or refuses.
        """

    def on_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Call `callback` on the event loop with the worker id of each peer that is gone, once per life of
        it.
        """

    def has_peer(self, worker: str) -> bool:
        """Whether a process of `worker` has this worker's arena mapped, so that bytes of it may land."""

    async def recall(self, worker: str) -> None:
        """Have `worker` unmap this worker's arena, and wait until it has, which takes as long as it lives
        when it hangs. Afterwards no copy that began before the call can land. The peer may connect again;
        its copies that the recall met raise `Unavailable`.
        """

    async def close(self) -> None: ...
