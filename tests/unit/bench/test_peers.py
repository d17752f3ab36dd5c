"""What `bench.peers` reads from other engines, and which of their steps count."""

import json
from pathlib import Path

import pytest

from bench.peers import environment, llama_output
from bench.peers.environment import PeerUnavailable
from bench.peers.steps import decode_rate, prefill_rate


def test_the_case_stands_among_the_log_of_batched_bench() -> None:
    output = (
        "common_init: n_ctx is small\n\n"
        '{"n_kv_max": 1536, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 0, '
        '"n_gpu_layers": -1, "n_threads": 2, "n_threads_batch": 2, "pp": 128, "tg": 64, "pl": 8, "n_kv": 1536, '
        '"t_pp": 3.5, "speed_pp": 292.57, "t_tg": 2.5, "speed_tg": 204.8, "t": 6.0, "speed": 256.0}\n\n'
        "llama_perf_context_print: load time = 100.00 ms\n"
    )
    assert llama_output.batched_bench(output) == (8, 204.8)


def test_a_case_that_batched_bench_leaves_out_is_an_error() -> None:
    """It skips, with status 0, what does not fit its context."""
    with pytest.raises(ValueError, match="not 0"):
        llama_output.batched_bench("llama_perf_context_print: load time = 100.00 ms\n")


def test_every_repetition_of_llama_bench_counts() -> None:
    output = json.dumps(
        [
            {
                "n_prompt": 1024,
                "n_gen": 0,
                "avg_ts": 250.0,
                "samples_ns": [1, 2],
                "samples_ts": [200.0, 300.0],
            },
            {"n_prompt": 4096, "n_gen": 0, "avg_ts": 150.5, "samples_ns": [1, 2], "samples_ts": [150, 151]},
        ]
    )
    assert llama_output.bench(output) == {1024: [200.0, 300.0], 4096: [150.0, 151.0]}


def test_decoding_is_counted_while_all_sequences_decode() -> None:
    """The first sequence has begun a step before the second has its first token, and ends a step before it."""
    steps = [(1.0, [1, 0]), (1.5, [2, 1]), (1.6, [3, 2]), (1.75, [4, 3]), (2.75, [4, 4])]
    assert decode_rate(steps) == pytest.approx(4 / 0.25)


def test_sequences_that_never_decode_together_have_no_rate() -> None:
    with pytest.raises(ValueError, match="before all decoded"):
        decode_rate([(1.0, [1, 0]), (2.0, [2, 0]), (3.0, [2, 1]), (4.0, [2, 2])])
    with pytest.raises(ValueError, match="no token"):
        decode_rate([(1.0, [1, 0])])


def test_prefill_ends_with_the_first_token() -> None:
    assert prefill_rate(1024, [(1.0, [0]), (2.0, [1]), (9.0, [1])]) == 512


def test_a_build_that_fails_is_named_and_repeated(tmp_path: Path) -> None:
    def build(script: str) -> None:
        with environment.building(tmp_path) as missing:
            if missing:
                environment.run("the build", ["sh", "-c", script], tmp_path / "log")

    with pytest.raises(PeerUnavailable, match=r"the build failed with status 3; .* ends in\nbroken"):
        build("echo broken; exit 3")
    build("echo good")
    build("exit 4")  # not run
    assert (tmp_path / "log").read_text() == "good\n"


def test_a_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="needs the program no-such-compiler"):
        environment.run("the build", ["no-such-compiler"], tmp_path / "log")
