"""`docker compose up` is the same mesh as `paceline up`, with every service in a container of its own."""

import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import pytest

from paceline.cli.example import curl
from paceline.cli.sse import SseParser
from tests.compose.podman import Project, config

ROLES = ("gateway", "prefill", "decode", "kvstore", "drafter")
START_S = 120.0

pytestmark = pytest.mark.compose


@dataclass(frozen=True)
class Answer:
    """What one curl printed."""

    text: str
    finish_reason: str
    usage: dict[str, Any]

    @property
    def cached_tokens(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])

    @property
    def workers(self) -> dict[str, str]:
        """Who ran the prompt and who generated."""
        workers: dict[str, str] = self.usage["paceline"]["workers"]
        return workers


def paste(line: str) -> Answer:
    """Run a curl line as a user would."""
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=120)
    events = SseParser().feed(done.stdout)
    assert events[-1:] == ["[DONE]"], done.stdout.decode()
    chunks = [json.loads(event) for event in events[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    (reason,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return Answer(text, reason, chunks[-1]["usage"])


def wait_for_model(project: Project) -> str:
    """The model's id, once every service is healthy and the gateway can serve it."""
    deadline = time.monotonic() + START_S
    while fetch(f"{project.url}/health") is None or not all(map(project.healthy, ROLES)):
        assert time.monotonic() < deadline, project.compose("logs", "--tail=30")
        time.sleep(0.2)
    models = fetch(f"{project.url}/v1/models")
    assert models
    return str(json.loads(models)["data"][0]["id"])


def fetch(url: str) -> bytes | None:
    """The body, or None for anything but a 2xx."""
    done = subprocess.run(
        ["curl", "--silent", "--fail", "--max-time", "2", url], capture_output=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def test_configuration_is_valid_and_only_the_gateway_is_published_on_loopback() -> None:
    services = config()["services"]
    assert services.keys() == {"nats", "model", *ROLES}
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published.keys() == {"gateway"}
    assert [(p["host_ip"], p["published"], p["target"]) for p in published["gateway"]] == [
        ("127.0.0.1", "8080", 8080)
    ]


def test_prefill_and_decode_share_the_arena_directory_and_nothing_else_writable() -> None:
    services = config()["services"]
    for role in ("prefill", "decode", "kvstore"):
        mounts = {v["target"]: v for v in services[role]["volumes"]}
        assert mounts["/run/paceline"]["source"] == "arena"
        assert mounts["/models"]["read_only"] is True
        assert services[role]["read_only"] is True
    names = [services[role]["environment"]["PACELINE_WORKER"] for role in ROLES]
    assert len(set(names)) == len(names)


def test_settings_reach_the_containers() -> None:
    services = config(PACELINE_PORT="9000", PACELINE_API_KEYS="k1,k2", PACELINE_MODELS="/srv/models")[
        "services"
    ]
    assert services["gateway"]["ports"][0]["published"] == "9000"
    assert services["gateway"]["environment"]["PACELINE_API_KEYS"] == "k1,k2"
    assert services["decode"]["volumes"][0]["source"] == "/srv/models"


def test_torch_and_narrower_weights_are_for_those_who_ask() -> None:
    plain, chosen = config()["services"], config(PACELINE_EXTRA="torch", PACELINE_WEIGHTS="int8")["services"]
    for role in ("prefill", "decode"):
        assert (plain[role]["build"]["args"]["EXTRA"], chosen[role]["build"]["args"]["EXTRA"]) == (
            "engine",
            "torch",
        )
        assert plain[role]["environment"]["PACELINE_WEIGHTS"] == "auto"
        assert chosen[role]["environment"]["PACELINE_WEIGHTS"] == "int8"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_containers_answer_the_same_curl_with_a_handoff_and_without_their_prefill_worker(
    project: Project,
) -> None:
    line = curl(project.url, wait_for_model(project), with_key=False)

    cold = paste(line)
    assert cold.usage["prompt_tokens"] >= 256
    assert cold.cached_tokens == 0
    assert cold.workers == {"prompt": "prefill-0", "decode": "decode-0"}
    assert len(cold.text.split()) > 20
    for role in ("prefill", "decode"):
        find = "import importlib.util; print(importlib.util.find_spec('torch'))"
        assert project.podman.run("exec", project.container(role), "python", "-c", find) == "None\n"

    warm = paste(line)
    assert warm.cached_tokens >= 256
    assert warm.workers == cold.workers

    project.podman.run("kill", "--signal=KILL", project.container("prefill"))
    alone = paste(line)
    assert alone.workers == {"prompt": "decode-0", "decode": "decode-0"}
    assert len(alone.text.split()) > 20
