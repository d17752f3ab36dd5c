"""A GGUF model as the Hugging Face directory that other engines read."""

import json
import shutil
from pathlib import Path

from bench.peers import environment
from bench.recoded import recoded
from paceline.model import bpe
from paceline.model.config import ModelConfig, read_config
from paceline.model.fields import Fields
from paceline.model.files import locate
from paceline.model.fingerprint import fingerprint
from paceline.model.gguf import GgufFile

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def hugging_face(model: Path) -> Path:
    """config.json, float32 safetensors and the tokenizer of the GGUF file `model`, made once.

    Weights are float32, so that each engine rounds or quantizes the same values once. The tokenizer is Paceline's own
    reading of the file: that of transformers 5.5 loses the rule that splits digits.
    """
    files = locate(str(model))
    home = environment.directory(f"checkpoint-{files.name}-{fingerprint(files).hex()[:12]}")
    output = home / files.name
    with environment.building(home) as missing:
        if missing:
            environment.say(f"writing {files.name} as a Hugging Face directory")
            shutil.rmtree(output, ignore_errors=True)
            recoded(files, output, "float32")
            _complete_config(output / "config.json", read_config(files))
            _write_tokenizer(GgufFile(model), output)
    return output


def _complete_config(path: Path, config: ModelConfig) -> None:
    """Add what Paceline does not read and other engines want."""
    fields = json.loads(path.read_text()) | {
        "architectures": [_ARCHITECTURES[config.family]],
        "hidden_act": "silu",
        "dtype": "float32",
        "bos_token_id": config.bos_id,
        "eos_token_id": min(config.eos_ids),
    }
    path.write_text(json.dumps(fields, indent=1))


def _write_tokenizer(file: GgufFile, output: Path) -> None:
    bpe.from_gguf(file).save(str(output / "tokenizer.json"))
    fields = Fields(file.metadata, file.path)
    tokens = file.strings("tokenizer.ggml.tokens")
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": fields.text("tokenizer.chat_template"),
    }
    for name in ("bos", "eos"):
        for token in fields.ids(f"tokenizer.ggml.{name}_token_id"):
            settings[f"{name}_token"] = tokens[token]
    (output / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
