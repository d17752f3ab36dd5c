"""What safetensors files call the tensors that `parts` names."""

from dataclasses import dataclass

from paceline.model.safetensors import SafetensorsDirectory

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
    def of(cls, family: str, files: SafetensorsDirectory) -> "Names":
        """Those of the tensors in `files`, a model of `family`."""
        found = (pair for pair in _DECODERS if pair[0] + "embed_tokens.weight" in files)
        return cls(*next(found, _DECODERS[0]), _SPELLINGS.get(family, ()))

    def stored(self, name: str) -> str:
        """The name in the files of the tensor, or of the module, `name`."""
        for ours, theirs in self.spellings:
            name = name.replace(ours, theirs)
        return (self.head if name.startswith("lm_head") else self.decoder) + name
