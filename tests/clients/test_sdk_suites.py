"""The tests that come with the SDKs."""

import asyncio
import re

import pytest

from tests.clients.installed import Installed
from tests.clients.proxy import proxied
from tests.clients.sdk_suites import SUITES, Suite

_TIMEOUT_S = 100.0


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.file)
async def test_an_sdks_own_tests_pass(suite: Suite, installed: Installed, mesh: str) -> None:
    # Tests that an SDK expects to fail on its own mock may pass here: how many pass is counted exactly.
    async with proxied(mesh, body=suite.body) as proxy, asyncio.timeout(_TIMEOUT_S):
        process = await asyncio.create_subprocess_exec(
            *(str(installed.sdks / "bin" / "python"), "-m", "pytest", suite.file, "-k", suite.expression),
            *(
                "-q",
                "-o",
                "addopts=",
                "-o",
                "asyncio_mode=auto",
                "-o",
                "xfail_strict=false",
                "-p",
                "no:cacheprovider",
            ),
            cwd=installed.source(suite.package),
            env={"PATH": "/usr/bin:/bin", "TEST_API_BASE_URL": proxy.url + suite.base},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    summary = re.findall(r"(\d+) (passed|failed|error|errors|skipped)", output.decode().splitlines()[-1])
    assert summary == [(str(suite.passes), "passed")], output.decode()
