"""Files that are there whole or not at all, whenever the machine stops."""

import json
import os
import shutil
from io import BytesIO
from pathlib import Path
from typing import IO, Any


def publish(part: Path, path: Path) -> None:
    """Give `part`, whose bytes are on disk, the name `path`."""
    part.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def copy(source: Path, path: Path) -> None:
    """Write what `source` holds, of any size. Raises `OSError`."""
    with source.open("rb") as file:
        _write(path, file)


def write_json(path: Path, values: Any) -> None:
    """Write a small file. Raises `OSError`."""
    # In ASCII, because not all that JSON can escape can be encoded.
    _write(path, BytesIO(json.dumps(values, indent=2).encode() + b"\n"))


def _write(path: Path, data: IO[bytes]) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        shutil.copyfileobj(data, file)
        file.flush()
        os.fsync(file.fileno())
    publish(part, path)
