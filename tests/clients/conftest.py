"""One mesh of real processes, whose model says what the clients' script says, and a proxy for each test before it."""

from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.clients.allowed_skips import ALLOWED_SKIPS
from tests.clients.cases import OTHERWISE, RESULTS, lines_for
from tests.clients.clients import CLIENTS
from tests.clients.installed import Installed
from tests.clients.installed import installed as find_installed
from tests.clients.model import NAME, save_scripted
from tests.clients.proxy import Proxy, proxied
from tests.system.harness import paceline_up


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip whose reason is not on the list is a failure."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in ALLOWED_SKIPS:
            report.outcome = "failed"
            report.longrepr = f"skipped for a reason that is not in allowed_skips.py: {reason}"
    return report


@pytest.fixture(scope="session")
def installed() -> Installed:
    found = find_installed()
    if not found.complete:
        pytest.fail("The clients are not installed: python -m tests.clients.installed")
    return found


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all clients: some take half a minute to set up a new one."""
    return tmp_path_factory.mktemp("home")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URL of its gateway."""
    lines = [line for client in CLIENTS for line in lines_for(client.name, client.shell)]
    model = save_scripted(tmp_path_factory.mktemp("models") / NAME, [*lines, *RESULTS], OTHERWISE)
    async with paceline_up(
        model, tmp_path_factory.mktemp("mesh"), env={"PACELINE_MODEL_NAME": NAME}
    ) as system:
        yield f"http://127.0.0.1:{system.port}"


@pytest.fixture
async def proxy(mesh: str) -> AsyncIterator[Proxy]:
    async with proxied(mesh) as proxy:
        yield proxy


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty directory to work in."""
    path = tmp_path / "project"
    path.mkdir()
    return path
