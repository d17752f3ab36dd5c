"""A model directory that takes no time to make or load: a byte-level tokenizer, a chat template, and weights that the
fake engine never reads."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from paceline.engine.fake import FakeEngine
from paceline.model.config import read_config
from paceline.model.files import ModelFiles, locate
from paceline.model.template import ChatTemplate
from paceline.model.tokenizer import Tokenizer as ModelTokenizer

NAME = "tiny"
CONTEXT = 16384

_SPECIAL = ("<|start|>", "<|end|>")
_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def save_tiny(directory: Path) -> Path:
    """A Hugging Face directory of a Llama of one layer."""
    directory.mkdir(parents=True, exist_ok=True)
    vocab = save_tokenizer(directory, pre_tokenizers.ByteLevel.alphabet())
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": vocab,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        {"model.embed_tokens.weight": np.zeros((vocab, 16), np.float32)}, directory / "model.safetensors"
    )
    return directory


def save_tokenizer(directory: Path, alphabet: Iterable[str]) -> int:
    """A tokenizer whose tokens are the bytes that `alphabet` spells, and a chat template; the size of its vocabulary.

    Token 0 begins a message and token 1 ends it.
    """
    vocab = {token: i for i, token in enumerate((*_SPECIAL, *sorted(alphabet)))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": _TEMPLATE, "eos_token": "<|end|>"})
    )
    return len(vocab)


class Wording:
    """Messages as tokens, and tokens as text."""

    def __init__(self, files: ModelFiles) -> None:
        self._tokenizer = ModelTokenizer.load(files)
        self._template = ChatTemplate.load(files)

    def prompt(self, content: str) -> list[int]:
        return self._tokenizer.encode(self._template.render([{"role": "user", "content": content}]))

    def decode(self, tokens: list[int]) -> str:
        return b"".join(self._tokenizer.token_bytes(t) for t in tokens).decode("utf-8", errors="replace")


class Oracle(Wording):
    """What greedy generation must say, by the fake engine's own arithmetic on the whole prompt."""

    def __init__(self, directory: Path) -> None:
        files = locate(str(directory))
        super().__init__(files)
        self._engine = FakeEngine(read_config(files))

    def text(self, content: str, count: int) -> str:
        """The answer of `count` tokens, none of which can end it (the fake engine avoids end tokens)."""
        return self.decode(self._engine.greedy(self.prompt(content), count))
