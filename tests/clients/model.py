"""A model directory of a small vocabulary, a template with tools and reasoning, and a script in place of weights."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.engine.scripted import FILE, Line, Script

NAME = "scripted"
CONTEXT = 131072

OPENING = "<|im_start|>assistant\n"
END = "<|im_end|>"
_SPECIAL = ("<|im_start|>", END)
_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_VOCABULARY = 4096
_PROSE = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "pyproject.toml")

_TEMPLATE = """\
{%- if tools %}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}
You may call these functions:
<tools>
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
</tools>
A call looks like this:
<tool_call>
{"name": <name>, "arguments": <object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
<|im_start|>assistant
{% if message.reasoning_content and loop.last %}
<think>
{{ message.reasoning_content }}
</think>

{% endif %}
{% if message.content %}{{ message.content }}{% endif %}
{% for call in message.tool_calls or [] %}
{{ "\\n" if message.content or not loop.first }}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif not (loop.first and tools and message.role == 'system') %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""


def save_scripted(directory: Path, lines: Sequence[Line], otherwise: str | None = None) -> Path:
    """A Hugging Face directory, whose fake engine answers with `lines`, or else with `otherwise`."""
    directory.mkdir(parents=True)
    vocabulary = _save_tokenizer(directory)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": vocabulary,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    weights = {"model.embed_tokens.weight": np.zeros((vocabulary, 16), np.float32)}
    save_file(weights, directory / "model.safetensors")
    (directory / FILE).write_bytes(msgspec.json.encode(Script(OPENING, list(lines), otherwise)))
    return directory


def _save_tokenizer(directory: Path) -> int:
    """Byte-level BPE, trained on this repository's prose, so that the prompts of agents have thousands of tokens and
    not tens of thousands; the size of its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    root = Path(__file__).parents[2]
    tokenizer.train([str(root / name) for name in _PROSE], trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in _MARKERS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"chat_template": _TEMPLATE, "eos_token": END}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return int(tokenizer.get_vocab_size())
