"""Files as they are stored and shown."""

from typing import Any, TypeAlias

import msgspec

from paceline.gateway.batches.names import Outcome

KEEP_S = 14 * 86_400
"""How long everything is kept."""


class _File(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    id: str
    filename: str
    created_at: int
    bytes: int


class InputFile(_File, frozen=True, kw_only=True, tag="input"):
    """Requests, one a line. `urls` are those that the lines name."""

    lines: int
    urls: tuple[str, ...]


class OutputFile(_File, frozen=True, kw_only=True, tag="output"):
    """The results of a batch that came out like `outcome`, as far as they were stored up to `upto`."""

    batch: str
    outcome: Outcome
    upto: int


File: TypeAlias = InputFile | OutputFile


def file_view(file: File) -> dict[str, Any]:
    """The file in OpenAI's shape."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.created_at + KEEP_S,
        "filename": file.filename,
        "purpose": "batch" if isinstance(file, InputFile) else "batch_output",
        "status": "processed",
        "status_details": None,
    }
