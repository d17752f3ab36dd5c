"""Podman, docker-compose, and what the mesh looks like in them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPO = HERE.parents[1]
DOCKER_COMPOSE = Path(sys.executable).parent / "docker-compose"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline-ci"
BASE = "localhost/paceline-base:bookworm-cxx"
# Dockerfile and build arguments of each image.
IMAGES: dict[str, tuple[str, list[str]]] = {
    "nats": ("tests/compose/nats.Dockerfile", []),
    "model": ("services/gateway/Dockerfile", ["EXTRA=cli"]),
    **{
        role: (f"services/{role}/Dockerfile", [])
        for role in ("gateway", "kvstore", "drafter", "prefill", "decode")
    },
}


@dataclass(frozen=True)
class Podman:
    """Runs podman with the settings that this machine needs."""

    env: dict[str, str]

    def run(self, *args: str | Path) -> str:
        """The output of `podman args`; fails the test when the command does."""
        done = subprocess.run(["podman", *args], env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def build(self, name: str) -> None:
        dockerfile, build_args = IMAGES[name]
        options = [f"--build-arg={arg}" for arg in [f"BASE={BASE}", *build_args]]
        volumes = [f"--volume={CACHE}/wheels:/wheels:ro", f"--volume={CACHE}/pip.conf:/etc/pip.conf:ro"]
        tag = f"localhost/paceline-test/{name}"
        self.run("build", "--network=none", *volumes, *options, f"--file={dockerfile}", f"--tag={tag}", REPO)


@dataclass(frozen=True)
class Project:
    """A compose project of the test, and the URL at which its gateway is published."""

    name: str
    podman: Podman
    env: dict[str, str]
    url: str

    def compose(self, *args: str) -> str:
        """The output of `docker-compose args`."""
        files = [f"--file={REPO / 'compose.yaml'}", f"--file={HERE / 'podman.yaml'}"]
        command = [str(DOCKER_COMPOSE), f"--project-name={self.name}", "--progress=quiet", *files, *args]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def container(self, service: str) -> str:
        return f"{self.name}-{service}-1"

    def healthy(self, service: str) -> bool:
        """Whether the health check of compose.yaml passes now. Podman runs none by itself without systemd."""
        command = ["podman", "healthcheck", "run", self.container(service)]
        return subprocess.run(command, env=self.env, capture_output=True, check=False).returncode == 0


def config(**env: str) -> dict[str, Any]:
    """compose.yaml as docker-compose understands it; fails the test when it does not."""
    command = [str(DOCKER_COMPOSE), f"--file={REPO / 'compose.yaml'}", "config", "--format=json"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed
