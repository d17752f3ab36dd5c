"""`paceline up` on the cpu engine: its answers through a whole mesh, and no torch in any process."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from paceline.engine.registry import open_engine
from paceline.model.files import ModelFiles
from paceline.worker.cores import usable_cores
from tests.dense import save_dense
from tests.system.harness import paceline_up
from tests.system.tiny import Wording
from tests.unit.engine_torch.steps import Rows, make_step

# The first of the tests to need it compiles the engine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOKENS = 24
# Each is longer than four pages, so that a prefill worker computes it, but for the last, which is decode's own.
QUESTIONS = (
    "The same long question about pacelines and headwinds, asked once more. " * 4,
    "Why does a paceline rotate? Count every turn, and name who leads. " * 6,
    "Who leads?",
)


def greedy(files: ModelFiles, prompt: list[int], count: int) -> list[int]:
    """The answer of one engine, token by token."""
    engine = open_engine("cpu", files)
    engine.load(lambda done, total: None)
    engine.bind(np.zeros((16, engine.layout.page_bytes), dtype=np.uint8))
    pages = list(range(16))
    answer = [int(engine.execute(make_step(Rows(prompt, 0, pages)))[-1].argmax())]
    while len(answer) < count:
        last = Rows(answer[-1:], len(prompt) + len(answer) - 1, pages)
        answer.append(int(engine.execute(make_step(last))[0].argmax()))
    engine.close()
    return answer


def priorities(pid: int) -> tuple[int, list[int]]:
    """How nice the main thread of a process is, and all others."""
    nice = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        nice[int(task.name)] = int((task / "stat").read_text().rpartition(")")[2].split()[16])
    return nice.pop(pid), list(nice.values())


async def test_a_mesh_says_what_one_engine_says_and_loads_no_torch(tmp_path: Path) -> None:
    files = save_dense(tmp_path / "dense")
    wording = Wording(files)
    expected = [wording.decode(greedy(files, wording.prompt(q), TOKENS)) for q in QUESTIONS]
    assert len(set(expected)) == len(QUESTIONS)

    async with paceline_up(files.path, tmp_path, engine="auto") as system:
        # Batches, the handoff and reused pages change no bit of a row.
        together = await asyncio.gather(*(system.ask(q, max_tokens=TOKENS) for q in QUESTIONS))
        again = await system.ask(QUESTIONS[0], max_tokens=TOKENS)
        assert [reply.text for reply in (*together, again)] == [*expected, expected[0]]
        assert again.usage["prompt_tokens_details"]["cached_tokens"] >= 256
        prompts = [reply.usage["paceline"]["workers"]["prompt"] for reply in together]
        assert prompts == ["prefill-0", "prefill-0", "decode-0"]

        engines = {row["worker"]: row["engine"] for row in await system.status()}
        assert (engines["prefill-0"], engines["decode-0"], engines["gateway-0"]) == ("cpu", "cpu", "")
        for worker, pid in system.pids().items():
            mapped = Path(f"/proc/{pid}/maps").read_text()
            assert ("/paceline/native/step-" in mapped) == (worker in ("prefill-0", "decode-0"))
            assert "torch" not in mapped

        # Engines compute on all cores, and stand back behind the event loop of their own worker.
        decode = system.pids()["decode-0"]
        loop, others = priorities(decode)
        assert others.count(loop + 5) >= usable_cores()
        await system.idle()
