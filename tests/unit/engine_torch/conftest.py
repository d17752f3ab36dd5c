"""Each test runs on every tiny model."""

import pytest

from paceline.engine.interface import Engine
from tests.unit.engine_torch.bound import Bound
from tests.unit.engine_torch.models import MODELS, Reference, save_model, start_engine


@pytest.fixture(scope="module", params=MODELS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def engine(reference: Reference) -> Engine:
    return start_engine(reference.files)


@pytest.fixture
def bound(reference: Reference) -> Bound:
    return Bound.load(reference)
