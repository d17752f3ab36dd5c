"""A model of Kimi's shape through `paceline up`: MLA, experts in INT4, and FP8 KV on decode workers alone."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.layout import KvDtype
from paceline.model.files import ModelFiles, locate
from tests.service.oracle import Oracle
from tests.system.harness import Reply, paceline_up
from tests.system.kimi import greedy, save_kimi
from tests.system.tiny import Wording

pytestmark = pytest.mark.slow

TOKENS = 16
# Each is longer than four pages, so that a prefill worker computes it.
QUESTIONS = (
    "The same long question about pacelines and headwinds, asked once more. " * 4,
    "Why does a paceline rotate? Count every turn, and name who leads. " * 6,
    "42 riders, 7 bends, 1 hill; who is first at the top of it? " * 9,
)
SHORT = "Who leads?"


@dataclass(frozen=True)
class Kimi:
    """The model on disk, its tokens, and what transformers answers to `QUESTIONS`."""

    files: ModelFiles
    wording: Wording
    texts: list[str]


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Kimi:
    directory = tmp_path_factory.mktemp("kimi") / "tiny-kimi"
    model = save_kimi(directory)
    files = locate(str(directory))
    wording = Wording(files)
    texts = [wording.decode(greedy(model, wording.prompt(q), TOKENS)) for q in QUESTIONS]
    return Kimi(files, wording, texts)


def test_float32_is_what_transformers_says(kimi: Kimi) -> None:
    oracle = Oracle.load(kimi.files, prefill="float32", decode="float32")
    for question, expected in zip(QUESTIONS, kimi.texts, strict=True):
        prompt = kimi.wording.prompt(question)
        assert len(prompt) > 256
        assert kimi.wording.decode(oracle.local(prompt, TOKENS)) == expected


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_per_token_head"])
async def test_prefill_in_float32_and_decode_in_fp8_say_what_one_process_says(
    kv_dtype: KvDtype, kimi: Kimi, tmp_path: Path
) -> None:
    oracle = Oracle.load(kimi.files, prefill="float32", decode=kv_dtype)
    prompts = [kimi.wording.prompt(question) for question in QUESTIONS]
    expected = [kimi.wording.decode(oracle.handed_over(prompt, TOKENS)) for prompt in prompts]
    # Rounding is small enough here to change no token, so that all ways to the answer can be compared.
    assert expected == kimi.texts
    assert len(set(expected)) == len(QUESTIONS)
    short = kimi.wording.decode(oracle.local(kimi.wording.prompt(SHORT), TOKENS))

    flags = ("--dtype", "float32", "--decode-kv-dtype", kv_dtype)
    async with paceline_up(kimi.files.path, tmp_path, *flags, engine="torch") as system:
        first = await asyncio.gather(*(system.ask(q, max_tokens=TOKENS) for q in QUESTIONS))
        for reply, text, prompt in zip(first, expected, prompts, strict=True):
            check(reply, text, cached=0)
            assert reply.usage["prompt_tokens"] == len(prompt)
            assert reply.usage["paceline"]["workers"] == {"prompt": "prefill-0", "decode": "decode-0"}
            assert reply.usage["paceline"]["stages"]["handoff"] > 0
        again = [
            await system.ask(QUESTIONS[0], max_tokens=TOKENS),
            await system.complete(QUESTIONS[1], max_tokens=TOKENS),
        ]
        for reply, text, prompt in zip(again, expected, prompts, strict=False):
            check(reply, text, cached=(len(prompt) - 1) // 64 * 64)
        own = await system.complete(SHORT, max_tokens=TOKENS)
        check(own, short, cached=0)
        assert own.usage["paceline"]["workers"] == {"prompt": "decode-0", "decode": "decode-0"}
        kept = {row["worker"]: row["kv_dtype"] for row in await system.status()}
        assert (kept["prefill-0"], kept["decode-0"], kept["gateway-0"]) == ("float32", kv_dtype, "")
        await system.idle()


def check(reply: Reply, text: str, *, cached: int) -> None:
    found: dict[str, Any] = reply.usage.get("prompt_tokens_details", {})
    assert (reply.status, reply.error, reply.done) == (200, None, True)
    assert (reply.text, reply.finish_reason, found) == (text, "length", {"cached_tokens": cached})
