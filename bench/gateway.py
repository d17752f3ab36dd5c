"""What the gateway costs: CPU time of its process for each streamed token, at many streams.

    python -m bench.gateway [--quick] [--streams N] [--json FILE]

A real NATS server and a worker that computes nothing give 512 streams 50 tokens a second each: 39 us of one core for a
token, beyond which streams are refused. "text" answers are plain text, "calls" hold tool calls that a parser reads. The
floor beside them is the same work without sockets: a frame decoded, merged, made text and an event's bytes, in one
thread of this process.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from bench.meshes import free_port, healthy
from bench.rows import Row, arguments, report
from bench.streams import Streams
from paceline.bus.server import NatsServer
from paceline.contracts.frames import Tokens, decode_frame, encode_frame
from paceline.gateway.answer import Head
from paceline.gateway.dialects.chat import CHAT
from paceline.gateway.request import Request
from paceline.gateway.tokenizing import Encoded, Tokenizing
from paceline.model import bpe
from paceline.model.config import read_config
from paceline.model.files import locate
from paceline.model.gguf import GgufFile
from paceline.model.pull import ensure_default

STREAMS = 512
RATE = 50.0
TEXT = "The river ran past the garden, and seven lights stood green in the window of the old market. "
CALL = (
    '<tool_call>\n{"name": "write", "arguments": {"path": "a.py", "text": "'
    + TEXT * 8
    + '"}}\n</tool_call>\n'
)
TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
        },
    },
}
# Answers calls in Hermes' form, as its mention of the tag says.
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }} <tool_call>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {"text": (TEXT, {}), "calls": (CALL, {"tools": [TOOL]})}


def write_model(directory: Path) -> Path:
    """The default model's tokenizer under `TEMPLATE`: all of a model that a gateway reads."""
    path = Path(ensure_default(lambda done, total: None))
    config = read_config(locate(str(path)))
    bpe.from_gguf(GgufFile(path)).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    fields = {"model_type": "llama", "eos_token_id": min(config.eos_ids), "vocab_size": config.vocab}
    (directory / "config.json").write_text(json.dumps(fields))
    (directory / "model.safetensors").touch()
    return directory


@asynccontextmanager
async def process(*command: str, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command), stdout=asyncio.subprocess.DEVNULL, env={**os.environ, **env}
    )
    try:
        yield child
    finally:
        child.kill()
        await child.wait()


def cpu_seconds(pid: int) -> float:
    """All threads of a process."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((tasks / t / "schedstat").read_text().split()[0]) for t in os.listdir(tasks)) / 1e9


async def gateway_cost(model: Path, kind: str, streams: int, seconds: float) -> list[Row]:
    """Microseconds per token while all streams run, and how much of the rate arrived."""
    text, fields = KINDS[kind]
    language = await Tokenizing.load(locate(str(model)), 1)
    nats, port = NatsServer(), free_port()
    url = await nats.start()
    (tokens := model / f"{kind}.json").write_text(json.dumps(language.tokenizer.encode(text)))
    worker = (
        "bench.gateway_worker",
        "--nats",
        url,
        "--model",
        "m",
        "--rate",
        str(RATE),
        "--tokens",
        str(tokens),
    )
    environment = {
        "PACELINE_NATS_URL": url,
        "PACELINE_MODEL": str(model),
        "PACELINE_MODEL_NAME": "m",
        "PACELINE_PORT": str(port),
        "PACELINE_MAX_RUNNING": str(streams),
    }
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, **fields}
    try:
        async with process(*worker), process("paceline.gateway", **environment) as gateway:
            await healthy(port, gateway)
            async with Streams.open(port, body, streams) as clients:
                before, tokens_before, began = cpu_seconds(gateway.pid), clients.events, time.perf_counter()
                await asyncio.sleep(seconds)
                spent, came = cpu_seconds(gateway.pid) - before, clients.events - tokens_before
                rate = came / (time.perf_counter() - began)
    finally:
        await nats.stop()
        language.close()
    config: dict[str, str | int | float | bool] = {"streams": streams, "answers": kind}
    return [
        Row.of("gateway", config, "cpu_us_per_token", [spent / came * 1e6], "us"),
        Row.of("gateway", config, "tokens_per_s", [rate], "tok/s"),
    ]


async def floor(model: Path, kind: str, streams: int, steps: int) -> Row:
    """The same tokens through the same code, without sockets."""
    text, fields = KINDS[kind]
    language = await Tokenizing.load(locate(str(model)), 1)
    answer = language.tokenizer.encode(text)
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, **fields}
    spoken = CHAT.parse(json.dumps(body).encode(), vocab=language.tokenizer.vocab)
    prompt = Encoded([1], "x", "", thinking=False, parsed=True)
    ids = [f"{i:032x}" for i in range(streams)]
    frames = [
        encode_frame([Tokens(i, 1, step, (answer[step % len(answer)],)) for i in ids])
        for step in range(steps)
    ]
    requests = {i: Request(max_tokens=1 << 20, stop_ids=frozenset()) for i in ids}
    answers = {i: language.answering(spoken.ask, prompt) for i in ids}
    renderers = {i: spoken.renderer(Head(i, "m", 0)) for i in ids}
    for request in requests.values():
        request.begin(None, "d", 0.0)
    began = time.thread_time()
    for frame in frames:
        for entry in decode_frame(frame):
            name = entry.request_id
            requests[name].on_tokens(entry, 0.0)
            if deltas := answers[name].push(entry.tokens):
                renderers[name].deltas(0, deltas, ())
    spent = time.thread_time() - began
    language.close()
    config: dict[str, str | int | float | bool] = {"streams": streams, "answers": kind}
    return Row.of("floor", config, "cpu_us_per_token", [spent / (streams * steps) * 1e6], "us")


async def measure(kinds: Sequence[str], streams: int, seconds: float) -> list[Row]:
    rows = []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as directory:
            model = write_model(Path(directory))
            rows += await gateway_cost(model, kind, streams, seconds)
            rows.append(await floor(model, kind, streams, int(seconds * 10)))
    return rows


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--streams", type=int, default=STREAMS)
    options = parser.parse_args()
    streams, seconds = (64, 2.0) if options.quick else (options.streams, 10.0)
    rows = uvloop.run(measure(list(KINDS), streams, seconds))
    report(rows, "gateway", options.json)


if __name__ == "__main__":
    main()
