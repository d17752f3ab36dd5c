"""Pages on their way to decode workers that keep KV in another form."""

from collections.abc import Callable
from typing import TypeAlias

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import KvForm
from paceline.engine.convert import PageConverter
from paceline.engine.layout import KV_DTYPES
from paceline.engine.profile import KvProfile
from paceline.transport.interface import Bytes

Convert: TypeAlias = Callable[[int, Bytes], Bytes]
"""(page group, page of this worker) -> the page as the other worker keeps it."""

_MAX = 64
"""Forms that are remembered: a decode worker has a new one each time it calibrates."""


class Converters:
    """One for each form of a peer's pages, made when it is first seen."""

    def __init__(self) -> None:
        self._known: dict[bytes, Convert] = {}

    def towards(self, own: KvProfile, form: KvForm) -> Convert:
        """From pages of `own`. Raises `InvalidRequest` for a form of another model's pages."""
        if form.profile_id == own.id:
            return _as_it_is
        if form.profile_id not in self._known:
            if len(self._known) == _MAX:
                del self._known[next(iter(self._known))]
            self._known[form.profile_id] = PageConverter(own, _profile(own, form)).convert
        return self._known[form.profile_id]


def _profile(own: KvProfile, form: KvForm) -> KvProfile:
    if form.dtype not in KV_DTYPES:
        raise InvalidRequest(f"KV dtype {form.dtype!r} is none of {', '.join(KV_DTYPES)}")
    found = own.stored_as(form.dtype, tuple(form.scales))
    if found.id != form.profile_id:
        raise InvalidRequest("the decode worker's pages are those of another model or layout")
    return found


def _as_it_is(group: int, page: Bytes) -> Bytes:
    return page
