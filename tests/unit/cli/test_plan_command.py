"""`paceline plan`, as typed."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from paceline.cli.__main__ import app


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_json_of_the_published_case() -> None:
    plan = json.loads(
        run("glm-5.2", "--gpus", "8", "--tp", "8", "--weights", "int4", "--kv", "fp8", "--json")
    )
    # 75 layers of 256 experts in 4 bits and a 16-bit scale for 32 of them, all else in 16, the routers' biases in 32.
    experts = 75 * 256 * 3 * 6144 * 2048
    assert plan["weights_bytes"] == experts * 9 // 16 + (plan["parameters"] - experts) * 2 + 75 * 256 * 2
    # An eighth of it, and the rest of what every rank keeps: 2.9 GiB.
    assert plan["weights_bytes_per_gpu"] == pytest.approx(
        plan["weights_bytes"] / 8 + 7 / 8 * 2.93 * 2**30, rel=1e-3
    )
    assert plan["kv_bytes_per_token"] == 47_700
    assert plan["kv_tokens"] > 1_180_000
    assert plan["fits"]
    assert [role["kv_dtype"] for role in plan["roles"]] == ["bfloat16", "fp8_e4m3"]


def test_the_same_pool_holds_twice_the_tokens_in_fp8() -> None:
    bf16, fp8 = (
        json.loads(run("kimi-k2.6", "--gpus", "8", "--kv-pool", "48.2GB", "--kv", kv, "--json"))["kv_tokens"]
        for kv in ("bf16", "fp8")
    )
    assert (bf16, fp8) == (48_200_000_000 // 70_272 // 64 * 64, 48_200_000_000 // 35_136 // 64 * 64)


@pytest.mark.parametrize(("short", "name"), [("bf16", "bfloat16"), ("fp8", "fp8_e4m3")])
def test_short_and_full_names_of_kv_dtypes_are_the_same(short: str, name: str) -> None:
    full = run("kimi-k2.6", "--gpus", "8", "--kv-dtype", name, "--prefill-kv-dtype", name)
    assert full == run("kimi-k2.6", "--gpus", "8", "--kv", short, "--prefill-kv", short)
    kept = next(line for line in full.splitlines() if line.startswith("KV stored as"))
    assert kept.split()[3:] == [name, name]


def test_tables_show_the_arithmetic() -> None:
    output = run("kimi-k2.5", "--gpus", "8", "--gpu-memory", "80", "--ep", "8")
    for text in (
        "594.2 GB = 553.4 GiB",
        "70.95 GiB",
        "70,272 B",
        "fits 87,552 of 262,144 tokens of context; --context 262144 needs 16 GPUs with EP 16",
        "not on the hub",
        "reserve 2.5",
    ):
        assert text in output


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ("llama-3.3-70b --gpus 2", "fits 131,072 tokens of context; at least 2 GPUs"),
        ("llama-3.3-70b --gpus 2 --context 9000", "fits 9,000 tokens of context; at least one GPU"),
        (
            "llama-3.3-70b",
            "fits 16,832 of 131,072 tokens of context; --context 131072 needs 2 GPUs",
        ),
        (
            "kimi-k2.5 --gpus 4 --gpu-memory 80",
            "does not fit on 4 GPUs; at least 8 GPUs; --context 262144 needs 16 GPUs",
        ),
        ("kimi-k2.5 --gpus 4 --gpu-memory 80 --context 9000", "does not fit on 4 GPUs; at least 8 GPUs"),
        (
            "kimi-k2.5 --gpus 8 --gpu-memory 16",
            "does not fit on 8 GPUs; at least 64 GPUs; --context 262144 needs more GPUs",
        ),
        (
            "deepseek-v3 --gpus 8 --pp 2 --dp 2 --gpu-memory 80",
            "does not fit on 8 GPUs; at least 16 GPUs with PP 2, DP 2",
        ),
        (
            "kimi-k2.5 --gpus 8 --kv-pool 150",
            "does not fit on 8 GPUs: the KV pool of 150.00 GiB exceeds the card, which has 141.00 GiB; "
            "no tensor parallelism is enough",
        ),
        (
            "kimi-k2.5 --gpus 8 --gpu-memory 80 --kv-pool 20",
            "does not fit on 8 GPUs: the KV pool of 20.00 GiB exceeds the 4.20 GiB that are left of the card in "
            "prefill; at least 16 GPUs",
        ),
        ("kimi-k2.5 --gpu-memory 4", "does not fit on one GPU; no tensor parallelism is enough"),
    ],
)
def test_the_verdict_says_how_much_of_the_context_fits(arguments: str, verdict: str) -> None:
    assert run(*arguments.split()).splitlines()[0] == verdict


def test_the_answer_comes_before_the_arithmetic_and_that_before_the_assumptions() -> None:
    lines = run("llama-3.3-70b").splitlines()
    assert lines[:5] == [
        "fits 16,832 of 131,072 tokens of context; --context 131072 needs 2 GPUs",
        "tokens that fit, in all: 16,832 in prefill, 21,888 in decode",
        "longest sequence: 16,832 in prefill, 21,888 in decode",
        "",
        "llama-3.3-70b: 70.55B parameters, as published: BF16",
    ]
    assert any(line.startswith("one GPU: TP 1, PP 1, EP 1, DP 1") for line in lines)
    assert lines[lines.index("") + 1 :].count("") == 3
    assumptions = lines[len(lines) - lines[::-1].index("") :]
    assert assumptions[0].endswith("Paceline itself does not run a model on several GPUs yet")


def test_json_tells_the_longest_sequence_and_the_context() -> None:
    plan = json.loads(run("kimi-k2.5", "--gpus", "8", "--gpu-memory", "80", "--json"))
    assert plan["longest_sequence"] == min(role["longest_sequence"] for role in plan["roles"]) < 262_144
    assert (plan["context"], plan["minimum_gpus"], plan["minimum_gpus_for_context"]) == (262_144, 8, 16)


def test_narrow_terminals_lose_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    assert "…" not in run("glm-5.2", "--gpus", "8")


def test_it_needs_no_torch() -> None:
    """As on the machine of somebody who only plans."""
    without = "import sys; sys.modules['torch'] = None; from paceline.cli.__main__ import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", without, "plan", "llama-3.3-70b", "--gpus", "8", "--json"],
        capture_output=True,
        check=True,
    )
    # 80 layers of (2 x 64 + 2 x 8) heads of 128, three matrices of 28,672 and two norms; embedding, head, last norm.
    layer = 8192 * (2 * 64 + 2 * 8) * 128 + 3 * 8192 * 28_672 + 2 * 8192
    parameters = 80 * layer + 2 * 128_256 * 8192 + 8192
    plan = json.loads(done.stdout)
    assert done.stderr == b""
    assert plan["weights_bytes"] == 2 * parameters
    assert plan["weights_bytes_per_gpu"] == 2 * (parameters + 7 * 161 * 8192) // 8
    assert plan["kv_bytes_per_token"] == 80 * 2 * 8 * 128 * 2


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_leaves_is_no_error_to_talk_about(more: list[str]) -> None:
    """As `head` does; here before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "paceline.cli", "plan", "llama-3.3-70b", *more]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_what_does_not_fit_is_told_by_json_and_not_by_the_exit_status() -> None:
    assert json.loads(run("kimi-k2.5", "--json"))["fits"] is False  # `run` sees status 0
    assert 'exit status 0: for programs, --json says it in "fits"' in " ".join(
        run("--help").replace("│", " ").split()
    )


def test_help_shows_defaults_that_depend_on_other_options() -> None:
    shown = " ".join(run("--help").replace("│", " ").split())
    for default in ("tp x pp x dp", "gpus / (pp x dp)", "bf16", "the model's most"):
        assert f"[default: ({default})]" in shown


def test_layers_with_a_span_are_shown_apart() -> None:
    output = run("llama-4-scout", "--gpus", "2", "--role", "decode")
    assert "KV per token, 12 layers that keep all" in output
    assert "KV per token, 36 layers, chunk of 8,192: at most 8,192 tokens" in output
    assert "prefill" not in output.split("- this is arithmetic")[0].split("one of 2 GPUs")[1].splitlines()[0]


def test_published_figures() -> None:
    output = run("--published")
    assert output.count("explained\n") == 8
    assert output.count("inside the range\n") == 1
    claims = json.loads(run("--published", "--json"))
    assert {claim["verdict"] for claim in claims} == {"explained", "inside the range"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "no model 'nope': expected one of deepseek-v3, glm-5.2"),
        ([], "name a MODEL"),
        (["glm-5.2", "--gpus", "6", "--tp", "8"], "--gpus 6 is not tp x pp x dp = 8 x 1 x 1 = 8"),
        (["glm-5.2", "--tp", "3"], "--tp 3 does not divide the 64 attention heads"),
        (["glm-5.2", "--gpu-memory", "much"], "--gpu-memory 'much' is no size"),
        (["glm-5.2", "--gpu-memory", "0 GB"], "--gpu-memory '0 GB' is nothing"),
        (["glm-5.2", "--gpu-memory", "9" * 400], "is no size"),
        (["glm-5.2", "--context", "2000000"], "--context 2000000 is more than the model's 1048576 tokens"),
        (["llama-3.3-70b", "--gpus", "8", "--ep", "8"], "--ep 8 is for models with experts"),
        (["llama-3.3-70b", "--weights", "int4", "--rest", "fp8"], "--rest fp8 is for models with experts"),
        (
            ["llama-4-scout", "--gpus", "16"],
            "--tp 16 does not divide the 40 attention heads; give --tp 8 --pp 2\n",
        ),
        (
            ["llama-4-scout", "--gpus", "16", "--ep", "16"],
            "--tp 16 does not divide the 40 attention heads; give --tp 8 --pp 2 --ep 8\n",
        ),
        (["llama-4-scout", "--tp", "16"], "--tp 16 does not divide the 40 attention heads\n"),
        (["llama-3.3-70b", "--pp", "81"], "--pp 81 is more than the model's 80 layers"),
        (["glm-5.2", "--published"], "--published is about other models than glm-5.2"),
        (["glm-5.2", "--weights", "int4", "--group", "48"], "--group 48 is none of 32, 64, 128"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr
