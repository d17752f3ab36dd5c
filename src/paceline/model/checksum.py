"""SHA-256 of large files, computed once."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp


def matches(path: Path, sha256: str) -> bool:
    """Whether `path` is a file with that checksum (hex).

    The answer is remembered beside the file together with its size, time of change and inode, so that the next call
    costs two look-ups while the file is left alone.
    """
    try:
        before = _identity(path)
        if _recall(path) == {**before, "sha256": sha256}:
            return True
        with path.open("rb") as f:
            found = hashlib.file_digest(f, "sha256").hexdigest()
    except FileNotFoundError:
        return False
    if found == sha256:
        _remember(path, {**before, "sha256": sha256})
    return found == sha256


def _identity(path: Path) -> dict[str, int | str]:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino}


def _memo(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _recall(path: Path) -> object:
    try:
        return json.loads(_memo(path).read_bytes())
    except (OSError, ValueError):
        return None


def _remember(path: Path, memo: dict[str, int | str]) -> None:
    # Where nothing can be written, such as a mounted image, the next call has to read the file again.
    with suppress(OSError):
        handle, part = mkstemp(dir=path.parent, prefix=path.name)
        with open(handle, "w") as f:
            json.dump(memo, f)
        Path(part).replace(_memo(path))
