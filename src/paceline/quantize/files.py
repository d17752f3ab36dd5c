"""Files that are there whole or not at all, whenever the machine stops."""

import json
import os
from pathlib import Path
from typing import Any


def publish(part: Path, path: Path) -> None:
    """Give `part`, whose bytes are on disk, the name `path`."""
    part.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file. Raises `OSError`."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish(part, path)


def write_json(path: Path, values: Any) -> None:
    """Write a small file. Raises `OSError`."""
    write_bytes(path, json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n")
