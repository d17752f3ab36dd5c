"""What each agent has to be told so that it talks to a mesh, and to nothing else. Pure."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

AgentName: TypeAlias = Literal["opencode", "codex", "claude", "cline", "aider"]

NO_KEY = "unused"
"""Agents refuse to start without a key, and a mesh on this machine wants none."""

_PROVIDER = "paceline"
_KEY_VARIABLE = "PACELINE_API_KEY"


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway, by its URL without a path, and the model to ask there."""

    url: str
    model: str
    key: str = NO_KEY

    @property
    def openai(self) -> str:
        """The base URL for clients of OpenAI's API."""
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class Plan:
    """A command, what it finds in its environment beside what is there already, and the files that must exist first."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[Path, str] = field(default_factory=dict)

    def script(self) -> str:
        """What a shell would do: each file as a comment that names it and its text, then the command."""
        files = [f"# {path}\n{text.rstrip()}\n" for path, text in self.files.items()]
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return "\n".join([*files, " \\\n  ".join([*settings, shlex.join(self.argv)])])


@dataclass(frozen=True, slots=True)
class Agent:
    """`settings` gives environment and files for a mesh and a directory that is the agent's own for one run."""

    command: str
    install: str
    settings: Callable[[Target, Path], tuple[dict[str, str], dict[Path, str]]]

    def plan(self, target: Target, directory: Path, arguments: Sequence[str]) -> Plan:
        """How to run it with `arguments`."""
        env, files = self.settings(target, directory)
        return Plan((self.command, *arguments), env, files)


def _opencode(target: Target, _: Path) -> tuple[dict[str, str], dict[Path, str]]:
    model = f"{_PROVIDER}/{target.model}"
    config = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": model,
        "small_model": model,
        "enabled_providers": [_PROVIDER],
        "provider": {
            _PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Paceline",
                "options": {"baseURL": target.openai, "apiKey": f"{{env:{_KEY_VARIABLE}}}"},
                "models": {target.model: {"name": target.model, "tool_call": True, "reasoning": True}},
            }
        },
    }
    env = {
        _KEY_VARIABLE: target.key,
        # A file would give way to what the project that it runs in has configured.
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    return env, {}


def _codex(target: Target, directory: Path) -> tuple[dict[str, str], dict[Path, str]]:
    # A string of JSON is one of TOML as well.
    lines = [
        f"model = {json.dumps(target.model)}",
        f'model_provider = "{_PROVIDER}"',
        "check_for_update_on_startup = false",
        "",
        "[analytics]",
        "enabled = false",
        "",
        f"[model_providers.{_PROVIDER}]",
        'name = "Paceline"',
        f"base_url = {json.dumps(target.openai)}",
        f'env_key = "{_KEY_VARIABLE}"',
        'wire_api = "responses"',
    ]
    env = {_KEY_VARIABLE: target.key, "CODEX_HOME": str(directory)}
    return env, {directory / "config.toml": "\n".join(lines) + "\n"}


def _claude(target: Target, directory: Path) -> tuple[dict[str, str], dict[Path, str]]:
    models = ("MODEL", "SMALL_FAST_MODEL", *(f"DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    env = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        # A key of the user's own would be sent as well.
        "ANTHROPIC_API_KEY": "",
        **{f"ANTHROPIC_{name}": target.model for name in models},
        "CLAUDE_CONFIG_DIR": str(directory),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        # It says something else in each request, and no prefix after it would ever be found again.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }
    # Else a new directory begins with questions about colours and accounts.
    return env, {directory / ".claude.json": _json({"hasCompletedOnboarding": True})}


def _cline(target: Target, directory: Path) -> tuple[dict[str, str], dict[Path, str]]:
    provider = "openai-compatible"
    settings = {"provider": provider, "apiKey": target.key, "baseUrl": target.openai, "model": target.model}
    providers = {
        "version": 1,
        "lastUsedProvider": provider,
        "providers": {
            provider: {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
        },
    }
    file = directory / "data" / "settings" / "providers.json"
    # Else a daemon stays behind for the next session.
    env = {"CLINE_DIR": str(directory), "CLINE_SESSION_BACKEND_MODE": "local"}
    return env, {file: _json(providers)}


def _aider(target: Target, directory: Path) -> tuple[dict[str, str], dict[Path, str]]:
    model = f"openai/{target.model}"
    env = {
        "OPENAI_API_BASE": target.openai,
        "OPENAI_API_KEY": target.key,
        "AIDER_MODEL": model,
        "AIDER_WEAK_MODEL": model,
        "AIDER_EDITOR_MODEL": model,
        "AIDER_ANALYTICS": "false",
        "AIDER_CHECK_UPDATE": "false",
        "AIDER_GITIGNORE": "false",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
        "AIDER_SHOW_RELEASE_NOTES": "false",
        "AIDER_CHAT_HISTORY_FILE": str(directory / "chat.md"),
        "AIDER_INPUT_HISTORY_FILE": str(directory / "input"),
    }
    return env, {}


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


AGENTS: Mapping[AgentName, Agent] = {
    "opencode": Agent("opencode", "npm install -g opencode-ai", _opencode),
    "codex": Agent("codex", "npm install -g @openai/codex", _codex),
    "claude": Agent("claude", "npm install -g @anthropic-ai/claude-code", _claude),
    "cline": Agent("cline", "npm install -g cline", _cline),
    "aider": Agent("aider", "python -m pip install aider-install && aider-install", _aider),
}
