"""What safetensors files call the tensors that `parts` names."""

from collections.abc import Container, Iterator
from dataclasses import dataclass

_DECODERS = (
    ("model.", ""),
    ("language_model.model.", "language_model."),
    ("model.language_model.", ""),
)
"""What stands before the names of the decoder's tensors, and before that of its head, in models that also see."""

_SPELLINGS = {
    "llama4_text": (
        (".mlp.", ".feed_forward."),
        (".gate.", ".router."),
        (".shared_experts.", ".shared_expert."),
    ),
    "gpt_oss": ((".gate.", ".router."),),
}


@dataclass(frozen=True, slots=True)
class Names:
    decoder: str
    head: str
    spellings: tuple[tuple[str, str], ...]

    @classmethod
    def possible(cls, family: str) -> Iterator["Names"]:
        """All that the files of a model of `family` may have."""
        return (cls(decoder, head, _SPELLINGS.get(family, ())) for decoder, head in _DECODERS)

    @classmethod
    def of(cls, family: str, files: Container[str]) -> "Names":
        """Those of the tensors whose names are in `files`, a model of `family`."""
        found = (names for names in cls.possible(family) if f"{names.decoder}embed_tokens.weight" in files)
        return next(found, next(cls.possible(family)))

    def stored(self, name: str) -> str:
        """The name in the files of the tensor, or of the module, `name`."""
        for ours, theirs in self.spellings:
            name = name.replace(ours, theirs)
        return (self.head if name.startswith("lm_head") else self.decoder) + name
