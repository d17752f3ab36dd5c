"""Bytes as people write them. GB is 10^9 bytes, GiB is 2^30."""

import re

from paceline.contracts.errors import InvalidRequest

GB = 10**9
GIB = 2**30

_UNITS = {"": GIB, "b": 1, "mb": 10**6, "mib": 2**20, "gb": GB, "gib": GIB, "tb": 10**12, "tib": 2**40}
_SIZE = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([a-z]*)\s*")


def parse_size(text: str, option: str) -> int:
    """Bytes of "141GiB", "48.2 GB" or "80", which is GiB: cards are named so, an H100 of "80 GB" has 79.6 GiB.

    Raises `InvalidRequest`, naming `option`.
    """
    match = _SIZE.fullmatch(text.lower())
    if match is None or match[2] not in _UNITS:
        raise InvalidRequest(f"{option} {text!r} is no size such as 80, 80GB or 80GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def both(count: float) -> str:
    """In both units, since publications rarely say which they mean."""
    return f"{count / GB:,.1f} GB = {count / GIB:,.1f} GiB"
