"""llama.cpp on a GGUF file as it is, and in Q4_0, by its own benchmarks and its server."""

import http.client
import json
import random
import subprocess
import time
from pathlib import Path

from bench.peers import llama_build, llama_output
from bench.peers.cases import Cases
from bench.peers.environment import PeerUnavailable, say
from bench.peers.servers import llama_server
from bench.rows import Row
from paceline.model.config import read_config
from paceline.model.files import locate
from paceline.model.gguf import GgufFile

_FIRST_ID = 100


def measure(model: Path, cases: Cases) -> list[Row]:
    """Raises `PeerUnavailable` where llama.cpp cannot be compiled or does not run.

    Its benchmarks neither sample nor detokenize: the next token is random. The others' rows hold both.
    """
    binaries = llama_build.binaries()
    rows = []
    shipped = GgufFile(model).tensor("blk.0.ffn_up.weight").dtype
    for weights, file in {shipped: model, "Q4_0": llama_build.requantized(model)}.items():
        say(f"llama.cpp {llama_build.VERSION} {weights}: measuring")
        rows += _Measurement(binaries, weights, file, cases).rows()
    return rows


class _Measurement:
    """One file of weights."""

    def __init__(self, binaries: Path, weights: str, file: Path, cases: Cases) -> None:
        self._binaries = binaries
        self._file = file
        self._cases = cases
        self._what = f"llama.cpp {weights}"
        self._config: dict[str, str | int | float | bool] = {"weights": weights, "kv": "float16"}

    def rows(self) -> list[Row]:
        return [*self._decode(), *self._prefill(), *self._cold()]

    def _decode(self) -> list[Row]:
        rows = []
        for batch in self._cases.decode:
            rates = [self._decode_once(batch) for _ in range(self._cases.repeats)]
            rows.append(Row.of(self._what, {**self._config, "batch": batch}, "decode_tok_s", rates, "tok/s"))
        return rows

    def _decode_once(self, batch: int) -> float:
        """A process each, with a context of just this batch; it warms up by itself."""
        prompt, output = self._cases.prompt, self._cases.output
        said = self._run(
            "llama-batched-bench",
            *("-c", batch * (prompt + output), "-b", 2048, "-t", self._cases.threads, "-fa", "on"),
            *("-npp", prompt, "-ntg", output, "-npl", batch, "--output-format", "jsonl"),
        )
        measured, rate = llama_output.batched_bench(said)
        assert measured == batch
        return rate

    def _prefill(self) -> list[Row]:
        if not self._cases.prefill:
            return []
        lengths = ",".join(map(str, self._cases.prefill))
        said = self._run(
            "llama-bench",
            *("-p", lengths, "-n", 0, "-r", self._cases.repeats, "-t", self._cases.threads),
            *("-fa", 1, "-o", "json"),
        )
        return [
            Row.of(self._what, {**self._config, "prompt": prompt}, "prefill_tok_s", rates, "tok/s")
            for prompt, rates in llama_output.bench(said).items()
        ]

    def _cold(self) -> list[Row]:
        """From the start of the server to the first token of a prompt, and the memory that the process had had then."""
        config = {**self._config, "prompt": self._cases.prompt}
        starts = [self._cold_once(i) for i in range(self._cases.repeats)]
        return [
            Row.of(self._what, config, "cold_first_token_s", [seconds for seconds, _ in starts], "s"),
            Row.of(self._what, config, "rss_mb", [megabytes for _, megabytes in starts], "MB"),
        ]

    def _cold_once(self, seed: int) -> tuple[float, float]:
        ids = random.Random(seed)
        vocab = read_config(locate(str(self._file))).vocab
        prompt = [ids.randrange(_FIRST_ID, vocab) for _ in range(self._cases.prompt)]
        context = self._cases.prompt + self._cases.output
        with llama_server(self._file, 1, context, self._cases.threads) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            try:
                body = json.dumps({"prompt": prompt, "n_predict": 1, "ignore_eos": True})
                connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = response.read()
                seconds = time.perf_counter() - server.spawned
            finally:
                connection.close()
            if response.status != 200:
                raise PeerUnavailable(f"llama-server answers with {response.status}: {answer[:500]!r}")
            return seconds, _peak_megabytes(server.pid)

    def _run(self, program: str, *arguments: str | int) -> str:
        """What `program` prints on standard output."""
        command = [str(self._binaries / program), "-m", str(self._file), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise PeerUnavailable(
                f"{program} ended with status {done.returncode}: {done.stderr.strip()[-1000:]}"
            )
        return done.stdout


def _peak_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kib) / 1024
