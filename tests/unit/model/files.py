"""Model files made by the libraries that define their formats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

QUANTS = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
    "Q4_0": gguf.GGMLQuantizationType.Q4_0,
    "Q4_1": gguf.GGMLQuantizationType.Q4_1,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
}

_CORPUS = [
    "The quick brown fox jumps over the lazy dog, and don't we love it when it's 12:34 in 2025?",
    "def forward(self, x):\n    return self.down(silu(self.gate(x)) * self.up(x))\n\n\n",
    "Größe, naïveté, 日本語のテスト, 🙂 emoji, ½ and ١٢٣",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, npt.NDArray[np.float32]]]
) -> Path:
    """`tensors` are (quantization, values); the architecture stands in `metadata` as `general.architecture`."""
    writer = gguf.GGUFWriter(path, metadata.get("general.architecture", "llama"))
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, (quant, values) in tensors.items():
        data = gguf.quants.quantize(values, QUANTS[quant])
        writer.add_tensor(name, data, raw_dtype=QUANTS[quant])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def train_tokenizer(*splits: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """A small byte-level BPE with three special tokens, whose text is cut by `splits`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(splits))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    return tokenizer
