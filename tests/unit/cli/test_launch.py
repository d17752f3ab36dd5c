"""What `paceline launch` tells agents, and how it runs one."""

import json
import os
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner, Result

from paceline.cli.__main__ import app
from paceline.cli.launch_command import run
from paceline.cli.launch_plan import AGENTS, Plan, Target

TARGET = Target("http://127.0.0.1:8080", 'org/a "model"', "sk-1")
HOME = Path("/run/own")


class Models(BaseHTTPRequestHandler):
    """A gateway that serves one model to who has the key, if it wants one."""

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "served"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base class names it so


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def launch(*arguments: str, **env: str) -> Result:
    return CliRunner(env={"PACELINE_API_KEY": None, **env}).invoke(app, ["launch", *arguments])


def install(directory: Path, name: str, body: str) -> str:
    """A command that is the shell script `body`; a PATH on which it is found."""
    directory.mkdir(exist_ok=True)
    file = directory / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return f"{directory}:{os.environ['PATH']}"


def test_opencode_gets_its_settings_inline() -> None:
    plan = AGENTS["opencode"].plan(TARGET, HOME, ["run", "hi"])
    assert plan.argv == ("opencode", "run", "hi")
    assert plan.files == {}
    assert plan.env["PACELINE_API_KEY"] == "sk-1"
    config = json.loads(plan.env["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == config["small_model"] == 'paceline/org/a "model"'
    assert config["enabled_providers"] == ["paceline"]
    provider = config["provider"]["paceline"]
    assert provider["options"] == {
        "baseURL": "http://127.0.0.1:8080/v1",
        "apiKey": "{env:PACELINE_API_KEY}",
    }
    assert list(provider["models"]) == ['org/a "model"']


def test_codex_gets_a_home_of_its_own() -> None:
    plan = AGENTS["codex"].plan(TARGET, HOME, [])
    assert plan.env == {"CODEX_HOME": "/run/own", "PACELINE_API_KEY": "sk-1"}
    config = tomllib.loads(plan.files[HOME / "config.toml"])
    assert (config["model"], config["model_provider"]) == ('org/a "model"', "paceline")
    assert config["model_providers"]["paceline"] == {
        "name": "Paceline",
        "base_url": "http://127.0.0.1:8080/v1",
        "env_key": "PACELINE_API_KEY",
        "wire_api": "responses",
    }


def test_claude_speaks_to_the_gateway_alone() -> None:
    plan = AGENTS["claude"].plan(TARGET, HOME, [])
    assert plan.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080"
    assert (plan.env["ANTHROPIC_AUTH_TOKEN"], plan.env["ANTHROPIC_API_KEY"]) == ("sk-1", "")
    models = {value for name, value in plan.env.items() if name.endswith("_MODEL")}
    assert models == {'org/a "model"'}
    assert plan.env["CLAUDE_CONFIG_DIR"] == "/run/own"
    assert json.loads(plan.files[HOME / ".claude.json"]) == {"hasCompletedOnboarding": True}


def test_cline_finds_its_provider_signed_in() -> None:
    plan = AGENTS["cline"].plan(TARGET, HOME, [])
    assert plan.env["CLINE_DIR"] == "/run/own"
    ((path, text),) = plan.files.items()
    assert path == HOME / "data/settings/providers.json"
    providers = json.loads(text)
    chosen = providers["providers"][providers["lastUsedProvider"]]["settings"]
    assert (chosen["baseUrl"], chosen["apiKey"], chosen["model"]) == (
        "http://127.0.0.1:8080/v1",
        "sk-1",
        'org/a "model"',
    )


def test_aider_writes_its_history_elsewhere() -> None:
    plan = AGENTS["aider"].plan(TARGET, HOME, ["a.py"])
    assert plan.argv == ("aider", "a.py")
    assert (plan.env["OPENAI_API_BASE"], plan.env["OPENAI_API_KEY"]) == ("http://127.0.0.1:8080/v1", "sk-1")
    assert plan.env["AIDER_MODEL"] == plan.env["AIDER_WEAK_MODEL"] == 'openai/org/a "model"'
    assert plan.env["AIDER_CHAT_HISTORY_FILE"].startswith("/run/own/")


def test_a_plan_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    path = install(tmp_path / "bin", "agent", 'printf "%s|" "$A" "$@"')
    plan = Plan(("agent", "it's", "a b"), {"A": 'x "y"'}, {tmp_path / "file": "one\ntwo\n"})
    script = plan.script()
    assert script.startswith(f"# {tmp_path}/file\none\ntwo\n\n")
    command = script.partition("two\n\n")[2]
    shell = subprocess.run(["sh", "-c", command], env={"PATH": path}, capture_output=True, check=True)
    assert shell.stdout == b'x "y"|it\'s|a b|'


def test_print_runs_nothing_and_hides_the_key(gateway: str, tmp_path: Path) -> None:
    path = install(tmp_path / "bin", "codex", f"touch {tmp_path}/ran")
    result = launch(
        "codex",
        "--print",
        "--base-url",
        f"{gateway}/v1/",
        "--",
        "exec",
        PATH=path,
        PACELINE_API_KEY="sk-secret",
    )
    assert result.exit_code == 0, result.output
    assert f'base_url = "{gateway}/v1"' in result.output
    assert 'model = "served"' in result.output
    assert result.output.rstrip().endswith("codex exec")
    assert "PACELINE_API_KEY=$PACELINE_API_KEY" in result.output
    assert "sk-secret" not in result.output
    assert not (tmp_path / "ran").exists()


def test_a_missing_agent_says_how_to_get_it(gateway: str, tmp_path: Path) -> None:
    result = launch("opencode", "--base-url", gateway, PATH=str(tmp_path))
    assert result.exit_code == 127
    assert "opencode is not installed. Install it with: npm install -g opencode-ai" in result.output


def test_without_a_mesh_there_is_nothing_to_launch() -> None:
    result = launch("codex", "--base-url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "nothing answers at http://127.0.0.1:1; start it with: paceline up" in result.output


def test_the_agent_gets_its_files_and_they_go_with_it(
    gateway: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = install(
        tmp_path / "bin",
        "codex",
        f'cat "$CODEX_HOME/config.toml" > {tmp_path}/seen; echo "$@" >> {tmp_path}/seen; exit 7',
    )
    result = launch("codex", "--base-url", gateway, "--model", "other", "--", "exec", "--json", PATH=path)
    assert result.exit_code == 7
    seen = (tmp_path / "seen").read_text()
    assert seen.startswith('model = "other"\n')
    assert seen.endswith("exec --json\n")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_reach_the_agent(tmp_path: Path, sent: signal.Signals, status: int) -> None:
    script = f"import os, signal; os.kill(os.getppid(), {int(sent)}); signal.pause()"
    assert run(Plan((sys.executable, "-c", script), {}, {})) == status


def test_ctrl_c_is_for_the_agent() -> None:
    script = "import os, signal; os.kill(os.getppid(), signal.SIGINT); raise SystemExit(5)"
    assert run(Plan((sys.executable, "-c", script), {}, {})) == 5
