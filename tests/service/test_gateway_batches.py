"""Files, batches and queued requests: a gateway with scripted workers on a real NATS server with JetStream."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from paceline.bus import jetstream
from paceline.bus.jetstream import JetStream
from paceline.bus.memory import MemoryBroker
from paceline.bus.nats import NatsBus
from paceline.bus.server import NatsServer
from paceline.contracts.messages import Generate
from paceline.gateway.batches.keeper import Keeper
from paceline.gateway.batches.names import tenant_token
from paceline.gateway.batches.queue import Queue
from paceline.gateway.batches.results import answered
from paceline.gateway.batches.store import Store
from tests.helpers import until
from tests.service.gateway_mesh import ScriptedMesh, scripted_mesh
from tests.service.gateway_model import write_model
from tests.service.gateway_worker import Script

TEXT = "Hello, wörld 😀!"
CHAT = "/v1/chat/completions"
RUN = "/client/v4/accounts/a/ai/run/m?queueRequest=true"
# Of every request in a batch.
HOLD = 3


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "jetstream")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "ACK_WAIT_S", 1.5)


def line(custom_id: str, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": custom_id}], **fields}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


class Client:
    """What a client of the batch API does."""

    def __init__(self, mesh: ScriptedMesh, key: str = "") -> None:
        self._mesh = mesh
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def call(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        url = self._mesh.url + path
        async with self._mesh.http.request(method, url, headers=self._headers, **options) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, path: str) -> Any:
        status, body = await self.call("GET", path)
        assert status == 200, body
        return body

    async def post(self, path: str, body: Any = None) -> Any:
        status, answer = await self.call("POST", path, json=body)
        assert status == 200, answer
        return answer

    async def upload(self, content: bytes, purpose: str = "batch") -> tuple[int, Any]:
        form = aiohttp.FormData()
        form.add_field("purpose", purpose)
        form.add_field("file", content, filename="in.jsonl")
        return await self.call("POST", "/v1/files", data=form)

    async def submit(self, *lines: dict[str, Any]) -> str:
        """The id of a new batch."""
        status, file = await self.upload(jsonl(*lines))
        assert status == 200, file
        body = {"input_file_id": file["id"], "endpoint": lines[0]["url"], "completion_window": "24h"}
        return str((await self.post("/v1/batches", body))["id"])

    async def content(self, file_id: str) -> bytes:
        url = f"{self._mesh.url}/v1/files/{file_id}/content"
        async with self._mesh.http.get(url, headers=self._headers) as response:
            assert response.status == 200
            return await response.read()

    async def lines_of(self, file_id: str | None) -> list[dict[str, Any]]:
        return [json.loads(x) for x in (await self.content(file_id)).splitlines()] if file_id else []

    async def reaches(self, batch_id: str, *states: str, timeout: float = 20.0) -> Any:
        """The batch, once it is in one of these states."""
        async with asyncio.timeout(timeout):
            while True:
                with contextlib.suppress(AssertionError):  # the server may be away
                    batch = await self.get(f"/v1/batches/{batch_id}")
                    if batch["status"] in states:
                        return batch
                await asyncio.sleep(0.02)

    async def results(self, batch: Any) -> Counter[str]:
        """How often there is a result of each request, in either file."""
        done = await self.lines_of(batch["output_file_id"])
        failed = await self.lines_of(batch["error_file_id"])
        return Counter(result["custom_id"] for result in (*done, *failed))


async def test_a_batch_of_good_and_bad_requests(server: NatsServer, model: Path) -> None:
    async with scripted_mesh(server, model, Script()) as mesh:
        client = Client(mesh)
        content = jsonl(
            line("good"),
            line("hot", temperature=9),
            line("elsewhere", model="other"),
            line("streamed", stream=True),
        )
        status, file = await client.upload(content)
        assert status == 200
        assert (file["bytes"], file["filename"], file["purpose"]) == (len(content), "in.jsonl", "batch")
        assert await client.get(f"/v1/files/{file['id']}") == file
        assert await client.content(file["id"]) == content
        body = {
            "input_file_id": file["id"],
            "endpoint": CHAT,
            "completion_window": "24h",
            "metadata": {"for": "me"},
        }
        batch = await client.post("/v1/batches", body)
        assert (batch["status"], batch["request_counts"]["total"]) == ("validating", 4)
        batch = await client.reaches(batch["id"], "completed")
        assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
        assert batch["metadata"] == {"for": "me"}

        done = {r["custom_id"]: r for r in await client.lines_of(batch["output_file_id"])}
        assert done.keys() == {"good", "streamed"}
        response = done["good"]["response"]
        assert response["status_code"] == 200
        assert response["body"]["choices"][0]["message"]["content"] == TEXT
        failed = {r["custom_id"]: r["response"] for r in await client.lines_of(batch["error_file_id"])}
        assert {name: r["status_code"] for name, r in failed.items()} == {"hot": 400, "elsewhere": 404}
        assert failed["hot"]["body"]["error"]["param"] == "temperature"

        output = await client.get(f"/v1/files/{batch['output_file_id']}")
        assert output["purpose"] == "batch_output"
        assert output["bytes"] == len(await client.content(output["id"]))
        listed = await client.get("/v1/files?purpose=batch_output")
        assert {f["id"] for f in listed["data"]} == {batch["output_file_id"], batch["error_file_id"]}
        assert (await client.call("DELETE", f"/v1/files/{output['id']}"))[1]["deleted"] is True
        assert (await client.call("GET", f"/v1/files/{output['id']}/content"))[0] == 404
        assert all(m.work.low_priority for w in mesh.workers for m in w.messages(Generate))
        await mesh.idle()


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/responses"])
async def test_other_endpoints(server: NatsServer, model: Path, url: str) -> None:
    async with scripted_mesh(server, model, Script()) as mesh:
        client = Client(mesh)
        request = {
            "custom_id": "a",
            "method": "POST",
            "url": url,
            "body": {"model": "m", "prompt": "hi", "max_tokens": 50},
        }
        if url == "/v1/responses":
            request["body"] = {"input": "hi"}
        batch = await client.reaches(await client.submit(request), "completed")
        (result,) = await client.lines_of(batch["output_file_id"])
        assert TEXT in json.dumps(result["response"]["body"], ensure_ascii=False)


async def test_files_and_batches_that_are_wrong(server: NatsServer, model: Path) -> None:
    async with scripted_mesh(server, model, Script(), batch_max_file_bytes=2000, batch_max_lines=3) as mesh:
        client = Client(mesh)

        async def refused(content: bytes, purpose: str = "batch") -> tuple[int, str | None]:
            status, body = await client.upload(content, purpose)
            return status, body["error"]["param"]

        assert await refused(jsonl(line("a"), line("a"))) == (400, "file[2].custom_id")
        assert await refused(jsonl(line("a")) + b"{") == (400, "file[2]")
        assert await refused(b"") == (400, "file")
        assert await refused(jsonl(line("a")), "fine-tune") == (400, "purpose")
        assert await refused(jsonl(*map(line, "abcd"))) == (400, "file")
        assert await refused(jsonl(line("a", pad="x" * 2000))) == (413, None)
        assert (await client.call("POST", "/v1/files", json={}))[0] == 400
        assert (await client.get("/v1/files"))["data"] == []

        _, file = await client.upload(jsonl(line("a")))
        good = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
        for change, status, param in (
            ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
            ({"endpoint": "/v1/completions"}, 400, "endpoint"),
            ({"completion_window": "1h"}, 400, "completion_window"),
            ({"metadata": {"k": 1}}, 400, "metadata"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after"),
            ({"input_file_id": "file-none"}, 404, None),
            ({"input_file_id": "*"}, 404, None),
        ):
            answer, body = await client.call("POST", "/v1/batches", json={**good, **change})
            assert (answer, body["error"]["param"]) == (status, param)
        for path in ("/v1/batches/none", "/v1/batches/*", "/v1/files/>"):
            assert (await client.call("GET", path))[0] == 404
        assert (await client.call("GET", "/v1/batches?limit=0"))[0] == 400


async def test_tenants_do_not_see_each_other(server: NatsServer, model: Path) -> None:
    async with scripted_mesh(server, model, Script(), api_keys="one,two") as mesh:
        one, two = Client(mesh, "one"), Client(mesh, "two")
        batch_id = await one.submit(line("a"))
        batch = await one.reaches(batch_id, "completed")
        for path in (f"/v1/batches/{batch_id}", f"/v1/files/{batch['output_file_id']}/content"):
            assert (await two.call("GET", path))[0] == 404
        assert (await two.call("POST", f"/v1/batches/{batch_id}/cancel"))[0] == 404
        assert (await two.call("DELETE", f"/v1/files/{batch['input_file_id']}"))[0] == 404
        assert (await two.get("/v1/batches"))["data"] == (await two.get("/v1/files"))["data"] == []
        assert [b["id"] for b in (await one.get("/v1/batches"))["data"]] == [batch_id]
        assert (await Client(mesh).call("GET", "/v1/batches"))[0] == 401


async def test_batches_are_listed_in_pages_and_bounded(server: NatsServer, model: Path) -> None:
    async with scripted_mesh(server, model, Script(hold_at=HOLD), batch_max_batches=3) as mesh:
        client = Client(mesh)
        ids = []
        for _ in range(3):
            ids.append(await client.submit(line("a")))
            await asyncio.sleep(0.002)  # ids are ordered by milliseconds
        page = await client.get("/v1/batches?limit=2")
        assert ([b["id"] for b in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
        page = await client.get(f"/v1/batches?limit=2&after={ids[1]}")
        assert ([b["id"] for b in page["data"]], page["has_more"]) == ([ids[0]], False)
        file_id = page["data"][0]["input_file_id"]
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        status, answer = await client.call("POST", "/v1/batches", json=body)
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")


async def test_a_batch_leaves_room_for_live_requests_and_shows_its_progress(
    server: NatsServer, model: Path
) -> None:
    script = Script(hold_at=HOLD)
    async with scripted_mesh(server, model, script, max_running=4) as mesh:
        client = Client(mesh)
        batch_id = await client.submit(*map(line, "abcde"))
        await until(lambda: mesh.gateway.load().running == 2)
        batch = await client.reaches(batch_id, "in_progress")
        assert batch["request_counts"] == {"total": 5, "completed": 0, "failed": 0}
        live = [asyncio.create_task(_status(mesh)) for _ in range(2)]
        await until(lambda: mesh.gateway.load().running == 4)
        await until(lambda: len(mesh.worker("d0").live) == 4)
        assert mesh.gateway.load().waiting == 0
        script.decode.set()
        assert [await one for one in live] == [200, 200]
        batch = await client.reaches(batch_id, "completed")
        assert batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}


async def _status(mesh: ScriptedMesh) -> int:
    async with mesh.post() as response:
        return int(response.status)


async def test_cancel_keeps_the_results_so_far(server: NatsServer, model: Path) -> None:
    script = Script()
    async with scripted_mesh(server, model, script, batch_max_running=2) as mesh:
        client = Client(mesh)
        script.hold_at = HOLD
        batch_id = await client.submit(line("bad", temperature=9), *map(line, "abcdef"))
        await until(lambda: len(mesh.worker("d0").live) == 2)
        batch = await client.post(f"/v1/batches/{batch_id}/cancel")
        assert batch["status"] == "cancelling"
        batch = await client.reaches(batch_id, "cancelled")
        assert batch["request_counts"] == {"total": 7, "completed": 0, "failed": 1}
        assert batch["output_file_id"] is None
        assert await client.results(batch) == {"bad": 1}
        await mesh.idle()  # what ran was cancelled, and nothing else begins
        assert (await client.post(f"/v1/batches/{batch_id}/cancel"))["status"] == "cancelled"


async def test_a_batch_without_workers_waits_for_them(server: NatsServer, model: Path) -> None:
    async with scripted_mesh(server, model, Script(), decode=0, prefill=0) as mesh:
        client = Client(mesh)
        batch_id = await client.submit(line("a"))
        await client.reaches(batch_id, "in_progress")
        await mesh.add("decode", "d0")
        batch = await client.reaches(batch_id, "completed")
        assert await client.results(batch) == {"a": 1}


async def test_a_result_of_a_gateway_that_died_before_it_said_so_stands(
    server: NatsServer, model: Path
) -> None:
    """There are no workers: nobody could answer a second time."""
    async with scripted_mesh(server, model, Script(), decode=0, prefill=0) as mesh:
        client = Client(mesh)
        batch_id = await client.submit(line("a"))
        bus = await NatsBus.connect(server.url, name="test")
        store = Store(JetStream(bus))
        result = answered(batch_id, 1, "a", "r", 200, {"n": 1})
        await store.put_result(batch_id, 1, "completed", result)
        await store.put_result(batch_id, 1, "failed", b"{}")
        await bus.close()
        batch = await client.reaches(batch_id, "completed")
        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        assert await client.content(batch["output_file_id"]) == result + b"\n"


async def test_what_had_no_turn_in_time_is_expired(server: NatsServer, model: Path) -> None:
    async with scripted_mesh(server, model, Script(hold_at=HOLD), batch_max_running=1) as mesh:
        client = Client(mesh)
        batch_id = await client.submit(line("bad", temperature=9), *map(line, "abc"))
        await until(lambda: len(mesh.worker("d0").live) == 1)
        await client.reaches(batch_id, "in_progress")
        bus = await NatsBus.connect(server.url, name="test")
        js = JetStream(bus)
        tomorrow = Keeper(bus, Store(js), Queue(js), clock=lambda: time.time() + 86_401)
        assert await tomorrow.tend(tenant_token("default"), batch_id) is None
        await bus.close()
        batch = await client.reaches(batch_id, "expired")
        assert batch["request_counts"] == {"total": 4, "completed": 0, "failed": 4}
        failed = await client.lines_of(batch["error_file_id"])
        errors = {r["custom_id"]: (r["error"] or {}).get("code") for r in failed}
        late = "batch_expired"
        assert errors == {"bad": None, "a": late, "b": late, "c": late}
        await mesh.idle()


async def test_a_second_gateway_finishes_what_a_killed_one_began(
    server: NatsServer, model: Path, short_wait: None
) -> None:
    """Each request has one result, wherever the first gateway was."""
    script = Script(hold_at=HOLD)
    names = [f"r{i}" for i in range(12)]
    async with scripted_mesh(server, model, script, batch_max_running=2) as mesh:
        client = Client(mesh)
        async with gateway_process(server, model) as other:
            batch_id = await client.submit(*map(line, names))
            taken = partial(mesh.worker("d0").messages, Generate)
            await until(lambda: len({m.work.gateway for m in taken()}) == 2, timeout=30.0)
            other.kill()
            await other.wait()
        script.decode.set()
        batch = await client.reaches(batch_id, "completed", timeout=40.0)
        assert batch["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
        assert await client.results(batch) == dict.fromkeys(names, 1)


@contextlib.asynccontextmanager
async def gateway_process(server: NatsServer, model: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    code = "import paceline.bus.jetstream as j; j.ACK_WAIT_S = 1.5; from paceline.gateway.__main__ import main; main()"
    settings = {
        "PACELINE_NATS_URL": server.url,
        "PACELINE_MODEL": str(model),
        "PACELINE_MODEL_NAME": "m",
        "PACELINE_PORT": "0",
        "PACELINE_BATCH_MAX_RUNNING": "2",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_batch_survives_the_death_of_the_server(
    server: NatsServer, model: Path, short_wait: None
) -> None:
    script = Script(hold_at=HOLD)
    names = [f"r{i}" for i in range(8)]
    async with scripted_mesh(server, model, script, batch_max_running=2) as mesh:
        client = Client(mesh)
        batch_id = await client.submit(*map(line, names))
        await client.reaches(batch_id, "in_progress")
        await until(lambda: len(mesh.worker("d0").live) == 2)
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: not any(w.bus.connected for w in mesh.workers))
        script.decode.set()
        await server.start(server.port)
        batch = await client.reaches(batch_id, "completed", timeout=40.0)
        assert batch["request_counts"] == {"total": 8, "completed": 8, "failed": 0}
        assert await client.results(batch) == dict.fromkeys(names, 1)


async def test_a_gateway_that_leaves_finishes_what_runs(server: NatsServer, model: Path) -> None:
    script = Script(hold_at=HOLD)
    async with scripted_mesh(server, model, script, batch_max_running=1) as mesh:
        client = Client(mesh)
        batch_id = await client.submit(line("a"), line("b"))
        await client.reaches(batch_id, "in_progress")
        await until(lambda: len(mesh.worker("d0").live) == 1)
        draining = asyncio.create_task(mesh.gateway.drain())
        await asyncio.sleep(0)
        script.decode.set()
        await draining
        batch = await client.get(f"/v1/batches/{batch_id}")
        assert batch["request_counts"]["completed"] == 1
        assert len(mesh.worker("d0").messages(Generate)) == 1


async def test_queued_requests_of_workers_ai(server: NatsServer, model: Path) -> None:
    script = Script(hold_at=HOLD)
    async with scripted_mesh(server, model, script) as mesh:
        client = Client(mesh)
        requests = [
            {"prompt": "a", "external_reference": "x"},
            {"prompt": "b", "temperature": 99},
            {"messages": [{"role": "user", "content": "c"}]},
        ]
        queued = (await client.post(RUN, {"requests": requests}))["result"]
        assert (queued["status"], queued["model"]) == ("queued", "m")
        poll = {"request_id": queued["request_id"]}
        waiting = (await client.post(RUN, poll))["result"]
        assert waiting["status"] in ("queued", "running")
        script.decode.set()
        async with asyncio.timeout(20):
            while "responses" not in (answer := await client.post(RUN, poll))["result"]:
                await asyncio.sleep(0.02)
        assert answer["success"] is True
        responses = answer["result"]["responses"]
        assert [(r["id"], r["success"], r["external_reference"]) for r in responses] == [
            (0, True, "x"),
            (1, False, None),
            (2, True, None),
        ]
        assert responses[0]["result"]["response"] == responses[2]["result"]["response"] == TEXT
        assert "temperature" in responses[1]["errors"][0]["message"]
        assert (await client.get("/v1/batches"))["data"] == (await client.get("/v1/files"))["data"] == []

        status, body = await client.call("POST", RUN, json={"request_id": "run_none"})
        assert (status, body["success"], body["errors"][0]["code"]) == (404, False, 7000)
        status, body = await client.call("POST", RUN, json={"requests": []})
        assert (status, body["errors"][0]["code"]) == (400, 5004)


async def test_without_jetstream_there_are_no_batches(
    memory_broker: MemoryBroker, nats_server: NatsServer, model: Path
) -> None:
    for broker in (memory_broker, nats_server):
        async with scripted_mesh(broker, model, Script()) as mesh:
            client = Client(mesh)
            for method, path in (("GET", "/v1/batches"), ("POST", "/v1/files"), ("POST", RUN)):
                status, body = await client.call(method, path, json={})
                assert status == 503
                assert "runs without JetStream" in json.dumps(body)
            async with mesh.post() as response:
                assert response.status == 200
