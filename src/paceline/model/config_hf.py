"""config.json and generation_config.json of a Hugging Face directory."""

from pathlib import Path

from paceline.model.config import ModelConfig, Unsound
from paceline.model.families.registry import READERS
from paceline.model.fields import Fields, read_json


def read(directory: Path) -> ModelConfig:
    """Raises `InvalidRequest` for a model that this program cannot run."""
    return parse(read_json(directory / "config.json"), eos_ids(directory))


def parse(fields: Fields, eos: frozenset[int]) -> ModelConfig:
    """The configuration in a config.json. Of a model that also sees, that of its text part."""
    text = text_fields(fields)
    family = text.text("model_type")
    if (reader := READERS.get(family)) is None:
        raise text.refuse(f"model_type {family!r} is none of {', '.join(READERS)}")
    if (activation := text.text("hidden_act", "silu")) != "silu":
        raise text.refuse(f"activation {activation!r} is not silu")
    try:
        return ModelConfig(
            family=family,
            hidden=text.count("hidden_size"),
            layers=reader(text),
            vocab=text.count("vocab_size"),
            context=text.count("max_position_embeddings"),
            norm_eps=text.number("rms_norm_eps", 1e-6),
            tied_head=text.flag("tie_word_embeddings", False),
            bos_id=min(text.ids("bos_token_id"), default=None),
            eos_ids=eos,
        )
    except Unsound as e:
        raise text.refuse(str(e)) from e


def text_fields(fields: Fields) -> Fields:
    """What config.json says of the language model: all of it, or the section of a model of several kinds of input."""
    return fields.section("text_config") if "text_config" in fields else fields


def eos_ids(directory: Path) -> frozenset[int]:
    """Every token that ends an answer: instruct models list more of them in generation_config.json."""
    config = read_json(directory / "config.json")
    ids = config.ids("eos_token_id") | text_fields(config).ids("eos_token_id")
    generation = directory / "generation_config.json"
    return ids | read_json(generation).ids("eos_token_id") if generation.exists() else ids
