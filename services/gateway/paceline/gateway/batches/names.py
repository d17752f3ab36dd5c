"""Ids, and the subjects that things are stored under.

paceline.batch.store.file.<tenant>.<file>            a `File`
paceline.batch.store.data.<file>.<n>                 lines of an input file, chunk n
paceline.batch.store.batch.<tenant>.<batch>          a `Batch`
paceline.batch.store.result.<batch>.<outcome>.<n>    the result of line n
paceline.batch.work.item.<batch>.<n>                 line n, until it has a result
paceline.batch.work.look.<tenant>.<batch>            somebody has to look after the batch
paceline.batch.stop.<batch>                          told to all gateways: its items are of no use any more
"""

import hashlib
import re
import secrets
import time
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["completed", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "failed")

STORE = "PACELINE_BATCH_STORE"
STORED = "paceline.batch.store.>"
WORK = "PACELINE_BATCH_WORK"
WORKED = "paceline.batch.work.>"
ITEMS = "paceline.batch.work.item.>"
LOOKS = "paceline.batch.work.look.>"
STOPS = "paceline.batch.stop.*"

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_id(prefix: str) -> str:
    """Ids sort by the time at which they were made."""
    return f"{prefix}{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def is_id(text: str) -> bool:
    """Whether it may stand in a subject: what clients send must be no wildcard."""
    return _ID.fullmatch(text) is not None


def tenant_token(name: str) -> str:
    """A tenant's name as part of a subject."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def file(tenant: str, file_id: str = "*") -> str:
    return f"paceline.batch.store.file.{tenant}.{file_id}"


def data(file_id: str, chunk: int | str = "*") -> str:
    return f"paceline.batch.store.data.{file_id}.{chunk}"


def batch(tenant: str, batch_id: str = "*") -> str:
    return f"paceline.batch.store.batch.{tenant}.{batch_id}"


def result(batch_id: str, outcome: Outcome | Literal["*"] = "*", line: int | str = "*") -> str:
    return f"paceline.batch.store.result.{batch_id}.{outcome}.{line}"


def item(batch_id: str, line: int | str = "*") -> str:
    return f"paceline.batch.work.item.{batch_id}.{line}"


def look(tenant: str, batch_id: str = "*") -> str:
    return f"paceline.batch.work.look.{tenant}.{batch_id}"


def stop(batch_id: str) -> str:
    return f"paceline.batch.stop.{batch_id}"


def last_token(subject: str) -> str:
    """What the subject ends with: an id, or the number of a line."""
    return subject.rpartition(".")[2]


def batch_of(item_subject: str) -> str:
    return item_subject.split(".")[-2]
