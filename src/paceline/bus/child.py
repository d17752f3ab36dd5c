"""Child processes that do not outlive their parent."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(sig: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """A `preexec_fn` after which the kernel sends `sig` to the child when this process dies, however it dies.

    The kernel watches the thread that starts the child, so that must be the main thread. None where the kernel has no
    such thing: only Linux does.
    """
    if sys.platform != "linux":
        return None
    # Loaded before the fork: in the child, other threads may hold the loader's lock for ever.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def preexec() -> None:
        prctl(_PR_SET_PDEATHSIG, sig.value, 0, 0, 0)
        # The parent may have died before the kernel knew.
        if os.getppid() != parent:
            os._exit(1)

    return preexec
