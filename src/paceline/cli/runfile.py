"""What a run tells `paceline status` about itself.

<run dir>/run.json                    the facts, private like the directory: they name the bus and its token
<state dir>/<port>/run.json           a link to them
<state dir>/<port>/<worker>.log       what each child logs; stays after the run
<state dir>/<port>/jetstream/         files and batches; stays after the run
"""

import os
from pathlib import Path

import msgspec


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One `paceline up`: `restarts` counts how often each child was started again."""

    pid: int
    port: int
    base_url: str
    nats_url: str
    model: str
    workers: list[str]
    restarts: dict[str, int] = {}


def state_dir(port: int) -> Path:
    """Where the runs on `port` keep their logs."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "paceline" / str(port)


def link_path(port: int) -> Path:
    """The link to the facts of the run on `port`."""
    return state_dir(port) / "run.json"


def write(run_dir: Path, info: RunInfo) -> None:
    """Publish `info`. Readers see the facts before or after, never half of them."""
    file = run_dir / "run.json"
    fresh = run_dir / "run.json.new"
    fresh.write_bytes(msgspec.json.encode(info))
    fresh.replace(file)
    link = link_path(info.port)
    if not link.is_symlink() or link.readlink() != file:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(file)


def read(port: int) -> RunInfo | None:
    """The run on `port`, or None when there is none or its process is gone."""
    try:
        info = msgspec.json.decode(link_path(port).read_bytes(), type=RunInfo)
        os.kill(info.pid, 0)
    except (FileNotFoundError, ProcessLookupError, msgspec.DecodeError):
        return None
    except PermissionError:
        # The process lives and is another user's.
        return info
    return info
