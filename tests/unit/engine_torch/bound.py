"""An engine together with its pages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.engine.interface import Engine
from tests.unit.engine_torch.models import PAGES, Reference, load_engine
from tests.unit.engine_torch.steps import Rows, make_step

UInt8 = npt.NDArray[np.uint8]
SPOILED = 0xFF
"""Of these bytes every float is NaN."""


@dataclass(frozen=True)
class Bound:
    """`pages` uint8 [PAGES, G * page_bytes]: a row has one page of each group, as `Rows.pages` means them."""

    engine: Engine
    pages: UInt8

    @classmethod
    def load(cls, reference: Reference, pages: UInt8 | None = None) -> "Bound":
        """Over pages that hold NaN unless `pages` are given."""
        engine = load_engine(reference.files)
        size = len(engine.layout.groups) * engine.layout.page_bytes
        pages = np.full((PAGES, size), SPOILED, dtype=np.uint8) if pages is None else pages
        engine.bind(pages.reshape(-1, engine.layout.page_bytes))
        return cls(engine, pages)

    def run(
        self,
        *sequences: Rows,
        moves: Sequence[tuple[int, int]] = (),
        logit_rows: Sequence[int] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Logits of all rows, or of some, once the pages that no row needs any more are somebody else's."""
        groups = self.engine.layout.groups
        by_group = self.pages.reshape(PAGES, len(groups), -1)
        for s in sequences:
            for g, first in enumerate(s.first_pages(groups)):
                by_group[s.pages[:first], g] = SPOILED
        step = make_step(*sequences, moves=moves, groups=groups)
        if logit_rows is not None:
            step = replace(step, logit_rows=np.array(logit_rows, dtype=np.int32))
        return self.engine.execute(step)
