"""How many threads can compute at once: what the kernel lets this process use, not what the machine has."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(own: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> int:
    """Cores of the affinity mask, or as many as the quota of the process's cgroup is worth, rounded up, where that is
    fewer: threads beyond a quota make the kernel stop them all for the rest of each period."""
    cores = len(os.sched_getaffinity(0))
    for quota, period in _quotas(own, root):
        cores = min(cores, max(1, -(-quota // period)))
    return cores


def _quotas(own: Path, root: Path) -> Iterator[tuple[int, int]]:
    """(quota, period) in microseconds of the cgroup (version 2) and of all above it that have one."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, path = line.split(":", 2)
        if number != "0":
            continue
        group = root / path.lstrip("/")
        while group.is_relative_to(root):
            # A container sees its own group as the root, whatever /proc calls it.
            file = group / "cpu.max"
            if file.is_file():
                quota, period = file.read_text().split()
                if quota != "max":
                    yield int(quota), int(period)
            if group == root:
                break
            group = group.parent
