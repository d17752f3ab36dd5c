"""The clients, and how each is run once: a prompt in, all that it prints out."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.cli.launch_plan import AGENTS, AgentName, Plan, Target
from tests.clients.allowed_skips import NO_LIMIT, NO_RESUME, NO_TOOLS
from tests.clients.cases import Case, Shell
from tests.clients.installed import Installed
from tests.clients.model import CONTEXT, NAME

_REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 50.0


@dataclass(frozen=True)
class Ride:
    """One run of a client: a `prompt` to the gateway at `url`, in a project. `resume` goes on with the last session.
    `limit` is the most tokens that an answer may have."""

    url: str
    home: Path
    project: Path
    prompt: str
    resume: bool = False
    limit: int | None = None

    @property
    def state(self) -> Path:
        """A directory that the client has to itself, in which the runs of one test meet."""
        return self.project.with_name("state")


@dataclass(frozen=True)
class Client:
    """`shell` makes its calls; None for a client without tools. `missing` says by case why it cannot be had."""

    name: str
    plan: Callable[[Ride, Installed], Plan]
    shell: Shell | None = None
    missing: Mapping[Case, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """`status` is None for a client that did not end in time."""

    status: int | None
    output: str


async def run(client: Client, ride: Ride, installed: Installed) -> Outcome:
    """Run it to its end, or for `TIMEOUT_S`."""
    plan = client.plan(ride, installed)
    for path, text in plan.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ride.state.mkdir(exist_ok=True)
    env = {
        "PATH": f"{installed.node_bin}:{os.environ['PATH']}",
        "HOME": str(ride.home),
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        **plan.env,
    }
    process = await asyncio.create_subprocess_exec(
        *plan.argv,
        cwd=ride.project,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    output = b""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            assert process.stdout is not None
            while data := await process.stdout.read(1 << 16):
                output += data
            await process.wait()
    except TimeoutError:
        return Outcome(None, output.decode(errors="replace"))
    finally:
        _end_group(process.pid)
        await process.wait()
    return Outcome(process.returncode, output.decode(errors="replace"))


def _end_group(leader: int) -> None:
    """With whatever the client left running."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def _agent(name: AgentName, ride: Ride, *arguments: str, env: Mapping[str, str] | None = None) -> Plan:
    """As `paceline launch` runs it, but for a directory that outlives the run."""
    plan = AGENTS[name].plan(Target(ride.url, NAME), ride.state, arguments)
    return Plan(plan.argv, {**plan.env, **(env or {})}, plan.files)


def _opencode(ride: Ride, _: Installed) -> Plan:
    limit = {"context": CONTEXT, "output": ride.limit or 4096}
    project = {
        "permission": {"bash": "allow", "edit": "allow", "webfetch": "deny"},
        "provider": {"paceline": {"models": {NAME: {"limit": limit}}}},
    }
    # With a title of its own a session asks the model for none.
    session = ("--continue",) if ride.resume else ("--title", "A ride")
    plan = _agent("opencode", ride, "run", "--format", "json", *session, ride.prompt)
    return Plan(plan.argv, plan.env, {**plan.files, ride.project / "opencode.json": json.dumps(project)})


def _codex(ride: Ride, _: Installed) -> Plan:
    options = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    session = ("resume", "--last") if ride.resume else ()
    return _agent("codex", ride, "exec", *options, *session, ride.prompt)


def _claude(ride: Ride, _: Installed) -> Plan:
    session = ("--continue",) if ride.resume else ()
    env = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(ride.limit)} if ride.limit else {}
    options = ("--output-format", "json", "--allowedTools", "Bash")
    return _agent("claude", ride, "-p", ride.prompt, *session, *options, env=env)


def _cline(ride: Ride, _: Installed) -> Plan:
    return _agent("cline", ride, "--json", "-c", str(ride.project), ride.prompt)


def _aider(ride: Ride, installed: Installed) -> Plan:
    options = ("--yes-always", "--no-auto-commits", "--map-tokens", "0", "--no-pretty", "--no-git")
    plan = _agent("aider", ride, "--message", ride.prompt, *options)
    return Plan((str(installed.aider / "bin" / "aider"), *plan.argv[1:]), plan.env, plan.files)


def _sdk(module: str, *options: str) -> Callable[[Ride, Installed], Plan]:
    def plan(ride: Ride, installed: Installed) -> Plan:
        limit = ("--max-tokens", str(ride.limit)) if ride.limit else ()
        argv = (
            *(str(installed.sdks / "bin" / "python"), "-m", f"tests.clients.sdk.{module}"),
            *("--url", ride.url, "--model", NAME, "--state", str(ride.state / "history.json")),
            *(*options, *limit, ride.prompt),
        )
        env = {"PYTHONPATH": str(_REPOSITORY), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        return Plan(argv, env)

    return plan


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def _shell(command: str) -> dict[str, Any]:
    return _call("shell", command=command)


CLIENTS = [
    Client(
        "opencode", _opencode, lambda command: _call("bash", command=command, description="Runs a command")
    ),
    Client("codex", _codex, lambda command: _call("exec_command", cmd=command), {"length": NO_LIMIT}),
    Client("claude", _claude, lambda command: _call("Bash", command=command, description="Runs a command")),
    Client(
        "cline",
        _cline,
        lambda command: _call("run_commands", commands=[command]),
        {"length": NO_LIMIT, "again": NO_RESUME},
    ),
    Client("aider", _aider, None, {"tool": NO_TOOLS, "parallel": NO_TOOLS, "length": NO_TOOLS}),
    Client("openai-chat", _sdk("openai_chat"), _shell),
    Client("openai-chat-whole", _sdk("openai_chat", "--whole"), _shell),
    Client("openai-responses", _sdk("openai_responses"), _shell),
    Client("openai-responses-whole", _sdk("openai_responses", "--whole"), _shell),
    Client("anthropic", _sdk("anthropic_messages"), _shell),
    Client("anthropic-whole", _sdk("anthropic_messages", "--whole"), _shell),
    Client("litellm", _sdk("litellm_chat"), _shell),
    Client("pydantic-ai", _sdk("pydantic_agent", "--whole"), _shell),
    Client("pydantic-ai-stream", _sdk("pydantic_agent"), _shell),
]
