"""Each test runs on every dense tiny model, with the native step compiled for every level."""

from pathlib import Path

import pytest
import transformers

from paceline.engine.cpu.levels import LEVELS, Level
from tests.unit.engine_cpu.engines import start
from tests.unit.engine_torch.bound import Bound
from tests.unit.engine_torch.models import MODELS, VOCAB, Reference, save, save_model

DENSE = ("llama", "llama3-rope", "yarn-rope", "qwen2", "qwen3", "odd")


@pytest.fixture(scope="session", params=DENSE)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    directory: Path = tmp_path_factory.mktemp(request.param)
    return save_model(request.param, directory) if request.param in MODELS else _odd(directory)


@pytest.fixture(scope="session", params=LEVELS)
def level(request: pytest.FixtureRequest) -> Level:
    found: Level = request.param
    return found


@pytest.fixture
def bound(reference: Reference, level: Level) -> Bound:
    return start(reference.files, level)


def _odd(directory: Path) -> Reference:
    """Sizes that nothing divides: half groups of columns, blocks of rows that are not full, five heads on one."""
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=85,
        intermediate_size=75,
        num_hidden_layers=2,
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=24,
        max_position_embeddings=512,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return save(config, directory)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save_model("llama", tmp_path_factory.mktemp("llama"))
