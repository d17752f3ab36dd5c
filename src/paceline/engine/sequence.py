"""One sequence on one worker: its tokens, the pages that hold their KV, and how far both have come."""

from dataclasses import dataclass, field
from enum import Enum

from paceline.contracts.frames import Logprobs
from paceline.contracts.hashing import PAGE_TOKENS, extend_chain, pages_for
from paceline.contracts.messages import CachedTokens, FinishReason, Sampling, TokenTree
from paceline.engine.holdings import Holdings
from paceline.engine.masks import Constraint
from paceline.engine.sampling import Adjustments, adjustments_for


class Forbidden(ValueError):
    """The grammar does not let `token` come next."""

    def __init__(self, token: int) -> None:
        super().__init__(f"the grammar forbids token {token}")
        self.token = token


class State(Enum):
    NEW = "new"  # unknown to the scheduler
    WAITING = "waiting"  # holds no pages
    FILLING = "filling"  # holds pages that a prefill worker writes
    RUNNING = "running"  # in the batch
    HELD = "held"  # finished, but its pages are still being read
    GONE = "gone"  # holds nothing and never will


@dataclass(slots=True, eq=False)
class Sequence:
    """Positions [0, computed) have KV in pages; `tokens` from there on are still to be run.

        tokens          prompt ............ | output .........
        holdings        [ full ][ full ][ partial ]            one per PAGE_TOKENS positions and page group
        hashes          [  0   ][  1   ]                       of full pages of `tokens`, computed or not

    `limit` is the number of tokens at which it ends with reason "length". Only the engine thread touches a sequence
    that is WAITING or RUNNING. Others may read what never changes, which are the constructor's arguments and, until
    it is aborted, the pages that it took; and everything once it is FILLING or HELD.
    """

    request_id: str
    attempt: int
    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    salt: bytes
    limit: int
    stop: frozenset[int]
    arrival: float
    remote: bool = False  # pages come from a prefill worker
    hold: bool = False  # keep the pages when finished, until released
    groups: int = 1  # page groups of the engine's layout
    early: bool = False  # nobody has room for its pages yet, so that they would be parked
    low_priority: bool = False
    constraint: Constraint | None = None  # in the state behind `tokens`
    state: State = State.NEW
    computed: int = 0
    holdings: Holdings = field(init=False)
    hashes: list[bytes] = field(default_factory=list)
    published: int = 0  # pages offered to the prefix cache
    imported: int = 0  # tokens that were fetched from the kvstore for this sequence
    cached: CachedTokens | None = None
    started: float = 0.0
    prompt_compute: float = 0.0  # seconds of steps up to the first output token
    compute: float = 0.0  # seconds of the `steps` after it
    steps: int = 0
    decoding: bool = False  # the first output token is there
    drafts: TokenTree | None = None
    draft_base: int = 0
    drafted: int = 0
    accepted: int = 0
    finish_reason: FinishReason | None = None
    adjustments: Adjustments | None = None
    logprobs: list[Logprobs] = field(default_factory=list)  # of tokens that no `Advance` has told of yet
    prompt_logprobs: list[Logprobs] = field(default_factory=list)  # of prompt tokens, from the second on

    def __post_init__(self) -> None:
        self.holdings = Holdings(self.groups, pages_for(self.limit))
        prompt, output = self.tokens[: self.prompt_tokens], self.tokens[self.prompt_tokens :]
        self.adjustments = adjustments_for(self.sampling, prompt, output)

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """Tokens whose KV is missing; 1 means that the sequence decodes."""
        return len(self.tokens) - self.computed

    @property
    def drawable(self) -> bool:
        """Whether nothing but a token is wanted of a row, which depends on nothing but its logits and mask."""
        return self.adjustments is None and self.sampling.logprobs is None

    @property
    def scores(self) -> bool:
        """Whether log probabilities of its prompt are wanted and not all there: then every position has to run."""
        return self.sampling.prompt_logprobs is not None and not self.decoding

    def surrender(self) -> None:
        """Nothing of the sequence is in pages any more."""
        self.holdings.clear()
        self.computed = self.published = 0

    def append(self, token: int) -> None:
        """`token` is the next one of the output. Raises `Forbidden` for one that its grammar does not allow."""
        if self.constraint is not None and not self.constraint.take(token):
            raise Forbidden(token)
        self.tokens.append(token)
        if self.adjustments is not None:
            self.adjustments.add(token)

    def hash_full_pages(self) -> None:
        """Extend `hashes` to all the full pages of `tokens`."""
        done = len(self.hashes)
        parent = self.hashes[-1] if self.hashes else self.salt
        self.hashes.extend(extend_chain(parent, self.tokens[done * PAGE_TOKENS :]))
