"""Skips on machines without containers; else builds the images and brings the mesh up."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.model.pull import ensure_default
from tests.compose.podman import CACHE, HERE, IMAGES, Podman, Project


@pytest.fixture(scope="session")
def podman() -> Podman:
    """Skips the test with a reason on a machine that cannot run containers."""
    command = ["bash", str(HERE / "prepare.sh"), sys.executable, str(CACHE)]
    prepared = subprocess.run(command, capture_output=True, text=True, check=False)
    if prepared.returncode:
        pytest.skip(" / ".join(prepared.stderr.strip().splitlines()[-3:]))
    return Podman({**os.environ, "CONTAINERS_CONF": str(CACHE / "containers.conf")})


@pytest.fixture(scope="session")
def images(podman: Podman) -> Iterator[None]:
    """Builds every image, without a network."""
    for name in IMAGES:
        podman.build(name)
    yield
    # What earlier runs built; today's layers are the cache of the next run.
    podman.run("image", "prune", "--force", "--filter", "until=24h")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory as the `model` service leaves it."""
    source = ensure_default(lambda _done, _total: None)
    directory = tmp_path / "models" / "paceline" / "models"
    directory.mkdir(parents=True)
    shutil.copy(source, directory)
    for path in (tmp_path / "models").rglob("*"):
        os.chown(path, 10001, 10001)
    return tmp_path / "models"


@pytest.fixture
def project(podman: Podman, images: None, models: Path, tmp_path: Path) -> Iterator[Project]:
    """The mesh in containers, taken down afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    api = f"unix://{tmp_path}/podman.sock"
    env = {**podman.env, "DOCKER_HOST": api, "PACELINE_PORT": str(port), "PACELINE_MODELS": str(models)}
    project = Project(f"paceline-test-{os.getpid()}", podman, env, f"http://127.0.0.1:{port}")
    log = tmp_path / "podman.log"
    with log.open("wb") as output:
        service = subprocess.Popen(
            ["podman", "system", "service", "--time=0", api], env=podman.env, stdout=output, stderr=output
        )
    try:
        while not (tmp_path / "podman.sock").exists():
            assert service.poll() is None, log.read_text()
        project.compose("up", "--detach")
        yield project
    finally:
        project.compose("down", "--volumes", "--timeout=20")
        service.terminate()
        service.wait()
