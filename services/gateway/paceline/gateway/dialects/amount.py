"""How much a body of JSON holds, told before it is built.

To build millions of values takes a second, in which the GIL is held and nobody else is served. To count them takes
milliseconds, and lets others run in between.
"""

from paceline.contracts.errors import InvalidRequest

# Below it a body cannot hold enough.
_SMALL_BODY = 64 << 10
_PIECE = 64 << 10

_MOST_CONTAINERS = 1 << 15
_MOST_STRINGS = 1 << 17
# Of which the ids of a long prompt are the most.
_MOST_VALUES = 1 << 19


def check_amount(json: bytes, param: str | None = None) -> None:
    """Raises `InvalidRequest` for more values than an honest request has. What is no JSON is taken as if it were."""
    if len(json) <= _SMALL_BODY:
        return
    inside = False  # of a string
    containers = quotes = commas = begin = 0
    while begin < len(json):
        piece = json[begin : begin + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = json[begin : begin + _PIECE + 1]
        begin += len(piece)
        texts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(texts[inside::2])
        containers += outside.count(b"[") + outside.count(b"{")
        commas += outside.count(b",")
        quotes += len(texts) - 1
        for count, most, what in (
            (containers, _MOST_CONTAINERS, "lists and objects"),
            (quotes // 2, _MOST_STRINGS, "strings"),
            (commas, _MOST_VALUES, "values"),
        ):
            if count > most:
                raise InvalidRequest(f"There are more than {most} {what}", param=param)
        inside ^= len(texts) % 2 == 0
