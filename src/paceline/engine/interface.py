"""The boundary between scheduling and arithmetic."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.engine.layout import KvDtype, PageLayout
from paceline.engine.profile import KvProfile
from paceline.engine.step import Float32, Step

Pages: TypeAlias = npt.NDArray[np.uint8]
"""uint8 [pages, layout.page_bytes], C-contiguous: the worker's page pool, usually a mapped arena."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes read, bytes in all) while weights load."""


class Engine(Protocol):
    """Runs a model. An engine knows pages and slots, never requests; every call comes from one thread.

    Its life:

    1. The constructor reads configuration only; everything but `profile` is valid from then on.
    2. `load` reads the weights. Raises `InvalidRequest` when the files are not a model it can run. `profile` is valid
       from then on.
    3. `bind` gives it the memory of the page pool, once. KV lives there and nowhere else, in `layout` order, so that
       others may copy pages in and out between steps.
    4. `execute` runs steps, in any number, until
    5. `close` frees everything; the engine may not be used again.

    `execute` depends on nothing but the weights, the pages and the step: no state of a sequence is kept.
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

    def load(self, progress: Progress) -> None: ...

    def bind(self, pages: Pages) -> None: ...

    def execute(self, step: Step) -> Float32:
        """Logits [R, vocab] of `step.logit_rows`, in order. Writes the KV of every row to its slot."""

    def close(self) -> None: ...
