from pathlib import Path

import pytest

from tests.system.tiny import Oracle, save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def oracle(tiny: Path) -> Oracle:
    return Oracle(tiny)
