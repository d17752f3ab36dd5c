"""The boundary between scheduling and arithmetic."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.messages import Sampling
from paceline.engine.layout import KvDtype, PageLayout
from paceline.engine.masks import Masks
from paceline.engine.profile import KvProfile
from paceline.engine.step import Float32, Step

Pages: TypeAlias = npt.NDArray[np.uint8]
"""uint8 [pages, layout.page_bytes], C-contiguous: the worker's page pool, usually a mapped arena."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes read, bytes in all) while weights load."""

Outcome: TypeAlias = "Float32 | list[Float32 | int]"
"""For each of R rows its logits float32 [vocab], or the token that was drawn from them: -1 where they hold no
distribution, but NaN or infinity."""


class Engine(Protocol):
    """Runs a model. An engine knows pages and slots, never requests; every call comes from one thread.

    Its life:

    1. The constructor reads configuration only; everything but `profile` is valid from then on.
    2. `load` reads the weights. Raises `InvalidRequest` when the files are not a model it can run. `profile` is valid
       from then on.
    3. `bind` gives it the memory of the page pool, once, in `layout` order. Others copy pages in and out of it between
       steps. An engine that computes in another memory has as many pages there, and copies when it is told.
    4. `execute` and `sample` run steps, in any number, until
    5. `close` frees everything; the engine may not be used again.

    A step depends on nothing but the weights, the pages and itself: no state of a sequence is kept.
    """

    @property
    def name(self) -> str:
        """As `--engine` names it."""

    @property
    def layout(self) -> PageLayout:
        """How a page's bytes are ordered."""

    @property
    def vocab(self) -> int:
        """Width of a row of logits."""

    @property
    def context(self) -> int:
        """Positions that a sequence may have."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def fingerprint(self) -> bytes:
        """32 bytes that name the model and the revision of its weights."""

    @property
    def kv_dtype(self) -> KvDtype:
        """What keys and values are stored as."""

    @property
    def profile(self) -> KvProfile:
        """Whose KV its pages hold, and how."""

    @property
    def in_place(self) -> bool:
        """Whether KV lives in the bound memory itself, so that `export_pages` and `import_pages` do nothing."""

    @property
    def page_memory(self) -> int | None:
        """Bytes that pages may take of another memory, from `load` to `bind`; None for an engine that is `in_place`."""

    def load(self, progress: Progress) -> None: ...

    def bind(self, pages: Pages) -> None: ...

    def export_pages(self, pages: Sequence[int]) -> None:
        """Bring what steps wrote to `pages` into the bound memory. It is there when this returns."""

    def import_pages(self, pages: Sequence[int]) -> None:
        """Take over what others wrote to `pages` of the bound memory, for every step from now on."""

    def execute(self, step: Step) -> Float32:
        """Logits [R, vocab] of `step.logit_rows`, in order. Writes the KV of every row to its slot."""

    def sample(self, step: Step, samplings: Sequence[Sampling | None], masks: Masks | None = None) -> Outcome:
        """As `execute`, for who wants tokens: rows with a `Sampling` may be drawn from where their logits lie, and then
        obey `masks`. Logits that are given out are the model's own.

        `samplings` [R] are None where logits are wanted.

        When `step`, `samplings` and `masks` are the very objects of the last call, the same sequences go on: the arrays
        hold other numbers in the same places.
        """

    def close(self) -> None: ...
