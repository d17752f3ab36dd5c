"""What a tenant's recent requests suggest as the next tokens of one of them. Pure.

The structure is that of deflate: a table from the last `MIN_MATCH` tokens to the newest place that they
precede, and for each place a link to the one before it with the same tokens. Adding a token is one lookup
and one store, a proposal walks at most `MAX_CHAIN` links, and a request is forgotten by one pass over its
own tokens. A suffix automaton would find the longest match among all places, but takes twice the time and,
in Python, 400 bytes a token, and it cannot forget.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.contracts.errors import InvalidRequest

MIN_MATCH = 3
"""Fewer equal tokens say too little about the next."""

MAX_MATCH = 24
"""More say nothing more."""

MAX_CHAIN = 64
"""Places that one proposal compares, the most recent first."""

DRAFT_FACTOR = 1.0
"""Tokens that are proposed for each token that matched: a short match is often wrong soon."""

# The key of three tokens, 21 bits each. Larger ids collide, which costs a comparison.
_BITS = 21
_KEY = (1 << (MIN_MATCH * _BITS)) - 1

# A place is a document number and an offset in it.
_OFFSET_BITS = 32
_OFFSET = (1 << _OFFSET_BITS) - 1
_NOWHERE = -1


@dataclass(eq=False, slots=True)
class Document:
    """One request: its tokens and, for each, the link of the place before it. `corpus` is None once it is
    forgotten.
    """

    number: int
    corpus: "Corpus | None"
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    links: "array[int]" = field(default_factory=lambda: array("q"))
    key: int = 0  # of the last tokens


class Corpus:
    """The recent requests of one tenant, at most `budget` tokens of them."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._documents: dict[int, Document] = {}
        # By age; what is over goes before what still grows.
        self._open: OrderedDict[int, Document] = OrderedDict()
        self._closed: OrderedDict[int, Document] = OrderedDict()
        self._newest: dict[int, int] = {}
        self._tokens = 0
        self._opened = 0

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return self._tokens

    def open(self, tokens: Sequence[int]) -> Document:
        """Begin a request with `tokens`, of which at most the last half budget is kept, so that it can grow.

        Raises `InvalidRequest` for ids beyond int32.
        """
        kept = _int32(tokens[-(self._budget // 2) :])
        self._opened += 1
        document = Document(self._opened, self)
        self._documents[document.number] = self._open[document.number] = document
        self.append(document, kept)
        return document

    def append(self, document: Document, tokens: Sequence[int]) -> None:
        """More tokens of an open document. Forgets the oldest documents over the budget, if need be this
        one.
        """
        try:
            added = array("i", tokens)
        except OverflowError as e:
            raise InvalidRequest("a token id does not fit 32 bits") from e
        newest, link = self._newest, document.links.append
        start = len(document.tokens)
        place = document.number << _OFFSET_BITS | start
        key = document.key
        for offset, token in enumerate(added, start):
            # The tokens before this one lead here, so every place in the table has a continuation.
            if offset >= MIN_MATCH:
                link(newest.get(key, _NOWHERE))
                newest[key] = place
            else:
                link(_NOWHERE)
            place += 1
            key = (key << _BITS | token) & _KEY
        document.key = key
        document.tokens.extend(added)
        self._tokens += len(added)
        while self._tokens > self._budget:
            self._forget(next(iter((self._closed or self._open).values())))

    def close(self, document: Document) -> None:
        """The document grows no more, and stays until it is the oldest."""
        if self._open.pop(document.number, None):
            self._closed[document.number] = document

    def propose(self, document: Document, max_tokens: int) -> list[int]:
        """At most `max_tokens` that followed the longest suffix of the document when it occurred before, in
        this document or another; of equally long ones those that are longest themselves, then the most
        recent.

        Empty when no suffix of `MIN_MATCH` tokens did. `MAX_CHAIN` places are looked at.
        """
        # Backwards from the end; one array access per compared token less.
        suffix = document.tokens[-MAX_MATCH:].tolist()[::-1]
        best, count, found = MIN_MATCH, 0, _NOWHERE
        place = self._newest.get(document.key, _NOWHERE) if len(suffix) >= MIN_MATCH else _NOWHERE
        for _ in range(MAX_CHAIN):
            other = self._documents.get(place >> _OFFSET_BITS)
            if other is None:
                break
            offset = place & _OFFSET
            # Most places differ within the length to beat, and most of these at its end.
            if offset >= best and other.tokens[offset - best] == suffix[best - 1]:
                matched = _common(other.tokens, offset, suffix)
                available = min(max_tokens, int(matched * DRAFT_FACTOR), len(other.tokens) - offset)
                if (matched, available) > (best, count):
                    best, count, found = matched, available, place
                if best == len(suffix) and count == min(max_tokens, int(best * DRAFT_FACTOR)):
                    break
            place = other.links[offset]
        if found == _NOWHERE:
            return []
        offset = found & _OFFSET
        return self._documents[found >> _OFFSET_BITS].tokens[offset : offset + count].tolist()

    def clear(self) -> None:
        """Forget everything."""
        for document in self._documents.values():
            document.corpus = None
        self._documents.clear()
        self._open.clear()
        self._closed.clear()
        self._newest.clear()
        self._tokens = 0

    def _forget(self, document: Document) -> None:
        del self._documents[document.number]
        self._open.pop(document.number, None)
        self._closed.pop(document.number, None)
        self._tokens -= len(document.tokens)
        document.corpus = None
        key = 0
        for offset, (token, link) in enumerate(zip(document.tokens, document.links, strict=True)):
            if self._newest.get(key, _NOWHERE) == document.number << _OFFSET_BITS | offset:
                if link >> _OFFSET_BITS in self._documents:
                    self._newest[key] = link
                else:
                    del self._newest[key]
            key = (key << _BITS | token) & _KEY


def _int32(tokens: Sequence[int]) -> "array[int]":
    try:
        return array("i", tokens)
    except OverflowError as e:
        raise InvalidRequest("a token id does not fit 32 bits") from e


def _common(tokens: "array[int]", offset: int, suffix: list[int]) -> int:
    """How many tokens before `offset` equal `suffix`, both read backwards."""
    matched = 0
    for token in suffix[:offset]:
        if tokens[offset - 1 - matched] != token:
            break
        matched += 1
    return matched


class Corpora:
    """A corpus for each tenant, of the most recently used tenants. Nothing of one tenant is ever proposed
    to another.
    """

    def __init__(self, *, tenants: int, tenant_tokens: int) -> None:
        self._tenants = tenants
        self._tenant_tokens = tenant_tokens
        self._corpora: OrderedDict[str, Corpus] = OrderedDict()

    def open(self, tenant: str, tokens: Sequence[int]) -> Document:
        """Begin a request of `tenant`, if need be in the place of the tenant that began none for longest."""
        corpus = self._corpora.pop(tenant, None) or Corpus(self._tenant_tokens)
        self._corpora[tenant] = corpus
        if len(self._corpora) > self._tenants:
            self._corpora.popitem(last=False)[1].clear()
        return corpus.open(tokens)
