"""Every message of the mesh: frozen structs, JSON on the wire, one tagged union per direction.

A `type` field carries the tag and `v` the version of the whole protocol; unknown fields are ignored and unknown
tags refused, so that a field with a default may be added without a new version. Token ids are plain int32
numbers. Times are seconds as float, wall-clock times are UNIX seconds. Golden bytes: tests/contract.

Who sends what to whom is in `subjects`; the binary token frame, which is not JSON, is in `frames`.
"""

from typing import Literal, TypeAlias

import msgspec

from paceline.contracts.frames import Logprobs

VERSION = 2

MAX_LOGPROBS = 20
"""Alternatives that a token's log probability may come with."""

MAX_PROMPT_LOGPROBS = 2**17
"""Log probabilities of a whole prompt, alternatives included, that fit into one message."""

FinishReason: TypeAlias = Literal["stop", "length"]
Role: TypeAlias = Literal["gateway", "prefill", "decode", "kvstore", "drafter"]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the tagged messages."""


# --- what a request asks for ----------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen, in vLLM's order: logit_bias, penalties, temperature, min_p, top_k, top_p.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 are off. `seed` keys the counter-based random numbers: the
    token at one position depends on the seed and the logits alone. The gateway fills it when the client gave none.

    `grammar`, the JSON of an llguidance TopLevelGrammar, says what the output may be; "" is anything. Tokens that it
    forbids are excluded before all else. Its end ends the answer, with reason "stop".

    `logprobs` asks for log probabilities of the output tokens, each with as many of the likeliest alternatives, and
    `prompt_logprobs` for those of the prompt from its second token on. They are of the model's own distribution,
    before grammar, biases, penalties and temperature.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: str = ""
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a request, the same for both legs.

    `output` holds tokens that an earlier attempt already gave to the client: a new attempt continues behind them.
    `salt` is the root of the tenant's page-hash chain (32 bytes). `deadline` is in UNIX seconds.
    `low_priority` work waits for all other.
    """

    request_id: str
    attempt: int
    gateway: str
    tenant: str
    salt: bytes
    prompt: list[int]
    sampling: Sampling
    deadline: float
    output: list[int] = []
    low_priority: bool = False


# --- how KV pages travel --------------------------------------------------------------------------


class ShmTransfer(Message, frozen=True, tag="shm"):
    """Pages in a memfd arena of the same host. `socket` hands out the file descriptor; a new `incarnation` means
    another arena."""

    socket: str
    incarnation: str


TransferParams: TypeAlias = ShmTransfer
"""How to reach a worker's pages; one member per transport, told apart by `type`."""


class LocalPrefill(Message, frozen=True, tag="local"):
    """The decode worker computes the prompt itself: small prompts, unified workers, no prefill worker alive."""


class RemotePrefill(Message, frozen=True, tag="remote"):
    """A prefill worker computes the prompt and pushes its pages under `transfer_id` (32 hex digits, fresh per
    attempt)."""

    worker: str
    incarnation: str
    transfer_id: str


KvSource: TypeAlias = LocalPrefill | RemotePrefill


class PageRef(msgspec.Struct, frozen=True, array_like=True):
    """One physical page and the tag it bore when the reference was made."""

    page: int
    tag: int


class ShmFeatures(Message, frozen=True, tag="shm_features"):
    """Hidden states for a draft head, left in an arena: row-major `[tokens][width]` of `dtype` at `offset` bytes."""

    transfer: TransferParams
    offset: int
    tokens: int
    width: int
    dtype: str


FeatureRef: TypeAlias = ShmFeatures


# --- gateway -> workers ---------------------------------------------------------------------------


class Prefill(Message, frozen=True, tag="prefill"):
    """Run the prompt, sample the first token, push the pages to whoever admits `transfer_id`."""

    work: Work
    transfer_id: str
    v: int = VERSION


class Generate(Message, frozen=True, tag="generate"):
    """Generate after the prompt. With `RemotePrefill` the first token comes from the prefill worker."""

    work: Work
    source: KvSource
    draft: bool = True
    v: int = VERSION


class Cancel(Message, frozen=True, tag="cancel"):
    """Forget every attempt at `request_id` up to and including `attempt`, and free what they hold."""

    request_id: str
    attempt: int
    v: int = VERSION


class Resend(Message, frozen=True, tag="resend"):
    """Publish this attempt's events again from token `index`. The reply says whether the worker knows it."""

    request_id: str
    attempt: int
    index: int
    v: int = VERSION


class Confirm(Message, frozen=True, tag="confirm"):
    """The gateway has the terminal event of this attempt: nothing has to be kept for a resend."""

    request_id: str
    attempt: int
    v: int = VERSION


class Drain(Message, frozen=True, tag="drain"):
    """Take no new work, finish what runs, then leave."""

    v: int = VERSION


class Ack(Message, frozen=True, tag="ack"):
    """The command was taken (a duplicate of one taken before gets the same answer)."""

    v: int = VERSION


class Refused(Message, frozen=True, tag="refused"):
    """The command was not taken; `code` is one of `errors`."""

    code: str
    message: str
    retry_after_s: float = 0.0
    v: int = VERSION


Reply: TypeAlias = Ack | Refused


# --- workers -> gateway: the JSON half of the event stream --------------------


class CachedTokens(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prompt tokens whose KV was reused instead of computed, by the tier they came from."""

    device: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds that the prompt spent in each stage."""

    queue: float = 0.0
    store: float = 0.0
    compute: float = 0.0


class Started(Message, frozen=True, tag="started"):
    """The worker that ran the prompt: what it really reused and how long it took. Precedes its first token.

    `prompt_logprobs` are of the prompt's tokens from the second on, where they were asked for."""

    request_id: str
    attempt: int
    worker: str
    cached: CachedTokens
    timings: Timings
    prompt_logprobs: list[Logprobs] = []
    v: int = VERSION


class Done(Message, frozen=True, tag="done"):
    """Terminal: output tokens [0, `tokens`) of the request were published, over all attempts. `compute` seconds in
    `steps` steps; `handoff` seconds from the first token until decode had its pages."""

    request_id: str
    attempt: int
    worker: str
    finish_reason: FinishReason
    tokens: int
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    compute: float = 0.0
    handoff: float = 0.0
    v: int = VERSION


class Failed(Message, frozen=True, tag="failed"):
    """Terminal: the attempt ended without an answer; `code` is one of `errors`."""

    request_id: str
    attempt: int
    worker: str
    code: str
    message: str
    v: int = VERSION


Event: TypeAlias = Started | Done | Failed


# --- decode <-> prefill ---------------------------------------------------------------------------


class KvForm(msgspec.Struct, frozen=True):
    """How a worker's pages keep KV: what another worker of the same model needs to write them.

    `profile_id` names model, revision and layout as well; `scales` are those of the `dtype` that lie outside the pages.
    """

    profile_id: bytes
    dtype: str
    scales: list[float]


class Admit(Message, frozen=True, tag="admit"):
    """Decode has room: push the prompt's pages into `pages`, which follow the first `resident` pages that decode
    already holds. Each page may be written only while its tag is unchanged.

    Of each page group, which both sides know by the profile, `pages` names those that the first decoded token sees: by
    place in the prompt, and by group where several have a page there."""

    transfer_id: str
    worker: str
    resident: int
    pages: list[PageRef]
    kv: KvForm
    transfer: TransferParams
    v: int = VERSION


class Commit(Message, frozen=True, tag="commit"):
    """All pages are written: `tokens` positions have KV. `digests` are xxh3-128 of each pushed page, in order.

    `first_token` continues the prompt; with `finish_reason` it also ended the request and decode only releases.
    Sampling needs no other state, because its random numbers are counted by position. `sampled_at` (UNIX seconds) is
    when the first token was there.
    """

    transfer_id: str
    tokens: int
    first_token: int
    sampled_at: float
    pages: list[PageRef]
    digests: list[bytes]
    finish_reason: FinishReason | None = None
    features: FeatureRef | None = None
    v: int = VERSION


class Withdraw(Message, frozen=True, tag="withdraw"):
    """Either side gives the handoff up. The reply is sent when the receiver will touch no page of it any more."""

    transfer_id: str
    code: str
    message: str
    v: int = VERSION


# --- prefill, decode <-> kvstore ------------------------------------------------------------------


class Lookup(Message, frozen=True, tag="lookup"):
    """Pin the longest stored prefix of `keys` (see `hashing.page_key`), or with `sparse` all that are stored."""

    worker: str
    keys: list[bytes]
    sparse: bool = False
    v: int = VERSION


class Lease(Message, frozen=True, tag="lease"):
    """Pages that stay where they are until `Release` or `ttl_s`. For reading, `digests` are what they must hold.

    After a sparse lookup `found` says which of its keys they are, by index."""

    lease_id: str
    pages: list[PageRef]
    digests: list[bytes]
    transfer: TransferParams
    ttl_s: float
    found: list[int] = []
    v: int = VERSION


class Reserve(Message, frozen=True, tag="reserve"):
    """Ask for room to store pages of `page_bytes` under those of `keys` that are not stored yet."""

    worker: str
    keys: list[bytes]
    page_bytes: int
    v: int = VERSION


class Reserved(Message, frozen=True, tag="reserved"):
    """Room for `keys`, a subset of what was asked; invisible to lookups until `Publish`."""

    lease_id: str
    keys: list[bytes]
    pages: list[PageRef]
    transfer: TransferParams
    v: int = VERSION


class Publish(Message, frozen=True, tag="publish"):
    """The reserved pages are written; `digests` in the order of `Reserved.keys`."""

    lease_id: str
    digests: list[bytes]
    v: int = VERSION


class Release(Message, frozen=True, tag="release"):
    """End a lease. `damaged` lists keys whose bytes did not match their digest: they are dropped."""

    lease_id: str
    damaged: list[bytes] = []
    v: int = VERSION


# --- decode <-> drafter ---------------------------------------------------------------------------


class DraftOpen(Message, frozen=True, tag="draft_open"):
    """Start drafting for a sequence. `tokens` are its prompt and output so far, `epoch` one life of it on one
    decode worker."""

    worker: str
    request_id: str
    epoch: int
    tenant: str
    tokens: list[int]
    v: int = VERSION


class DraftCommit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens that decode accepted from position `base` on; `features` are their hidden states for a draft head."""

    request_id: str
    epoch: int
    base: int
    tokens: list[int]
    features: FeatureRef | None = None


class Propose(Message, frozen=True, tag="propose"):
    """Accepted tokens of one decode step, for all drafting sequences. Proposals that cannot be sent before
    `deadline` (UNIX seconds) are dropped: decode never waits for one."""

    worker: str
    deadline: float
    max_tokens: int
    commits: list[DraftCommit]
    v: int = VERSION


class TokenTree(Message, frozen=True, tag="tree"):
    """Draft tokens in topological order; `parents[i]` indexes this list, -1 follows the last committed token."""

    tokens: list[int]
    parents: list[int]


class NoDraft(Message, frozen=True, tag="none"):
    """The drafter knows nothing that would continue this sequence."""


DraftProposal: TypeAlias = TokenTree | NoDraft


class Drafted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A proposal for the tokens from position `base` on, in one `epoch` of the sequence."""

    request_id: str
    epoch: int
    base: int
    proposal: DraftProposal


class Proposals(Message, frozen=True, tag="proposals"):
    """What the drafter offers after one `Propose` or `DraftOpen`."""

    drafts: list[Drafted]
    v: int = VERSION


class DraftClose(Message, frozen=True, tag="draft_close"):
    """The sequence left this worker; its tokens stay in the tenant's index."""

    worker: str
    request_id: str
    epoch: int
    v: int = VERSION


# --- everyone -> everyone -------------------------------------------------------------------------


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model that a worker serves. Workers of equal `fingerprint`, which names model and weights, hand pages over;
    how each keeps them, `kv_dtype`, may differ."""

    name: str
    context: int  # positions that a sequence may have there
    fingerprint: bytes
    kv_dtype: str
    page_bytes: int
    engine: str


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker holds now. `leases` counts everything that must be zero when idle besides requests and pages:
    handoffs, store leases, quarantined pages, drafting sequences, resend buffers."""

    running: int = 0
    waiting: int = 0
    queued_tokens: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_total: int = 0
    leases: int = 0
    tasks: int = 0
    tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    step_s: float = 0.0
    counters: dict[str, int] = {}


class Beacon(Message, frozen=True, tag="beacon"):
    """Sent twice a second by every service, and once more as `gone` when it leaves. Missing beacons mean death; another
    `incarnation` means that the worker forgot everything."""

    role: Role
    worker: str
    incarnation: str
    host: str
    pid: int
    state: Literal["starting", "ready", "draining", "gone"]
    started: float
    load: Load
    model: ModelInfo | None = None
    v: int = VERSION
