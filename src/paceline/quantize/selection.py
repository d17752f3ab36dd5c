"""Which modules of a model are quantized."""

import re
from dataclasses import dataclass
from pathlib import Path

from paceline.model.quantized.patterns import Patterns

# What costs much accuracy and saves few bytes, or is no linear layer of the language model. `mlp.gate` and the like are
# routers: one wrong expert costs more than all their bits.
_ALWAYS_KEPT = {
    "embedding": r"embed_tokens|wte|wpe|\w*embeddings?(\.\w+)*",
    "output head": r"lm_head|shared_head\.head|score|eh_proj",
    "router": r"(mlp|feed_forward|block_sparse_moe)\.gate|router|shared_expert_gate",
    "indexer weights": r"indexer\.weights_proj",
    "norm": r"\w*(norm|ln_\d|ln_f)",
    "not of the language model": r"(visual|vision\w*|audio\w*|mm_projector|multi_modal_projector)(\..+)?",
}
_REASONS = [(reason, re.compile(rf"(.+\.)?({pattern})")) for reason, pattern in _ALWAYS_KEPT.items()]
_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True, slots=True)
class Selection:
    """`keep`: what the user wants to keep besides; `experts_only`: quantize nothing but routed experts."""

    keep: Patterns
    experts_only: bool

    @classmethod
    def of(cls, patterns: tuple[str, ...], *, experts_only: bool) -> "Selection":
        """Raises `InvalidRequest` for a pattern that is no regular expression."""
        return cls(Patterns.parse(patterns, Path("--keep")), experts_only)

    def reason_to_keep(self, module: str) -> str | None:
        """Why the module `module` is not to be quantized, or None."""
        if self.keep.match(module):
            return "asked for"
        for reason, pattern in _REASONS:
            if pattern.fullmatch(module):
                return reason
        if self.experts_only and not _EXPERT.search(module):
            return "no routed expert"
        return None
