"""A model directory for a gateway: a tokenizer whose ids are the bytes of the text, and a small chat template."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from paceline.model.bytelevel import ALPHABET

EOS = 257
VOCAB = 258

# Mentions the tag by which calls in Hermes' form are known.
TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ (m.tool_calls or '') | string }}<|im_end|>"
    "{% endfor %}<|im_start|>assistant\n{{ '<think>' if enable_thinking else '' }}"
)

TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'raise' %}{{ raise_exception('no') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(
    directory: Path, tokenizer: tokenizers.Tokenizer | None = None, template: str = TEMPLATE
) -> Path:
    """Everything that a gateway reads; there are no weights."""
    directory.mkdir()
    (tokenizer or byte_tokenizer()).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": EOS}))
    (directory / "model.safetensors").touch()
    return directory


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Token ids are bytes."""
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={c: byte for byte, c in enumerate(ALPHABET)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def tokens_of(text: str) -> list[int]:
    """The output tokens that are `text`."""
    return list(text.encode())
