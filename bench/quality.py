"""What narrower weights and KV cost in quality: perplexity and KL divergence against the same model in float32.

    python -m bench.quality [--quick] [--json FILE] [--text FILE] [--model MODEL]

A text is cut into windows, which run as prompts do in the mesh: in chunks of 64 tokens, each of which reads the KV of
the chunks before it back from pages. The first chunk of each window is not scored. By default the text is the
repository's own prose, and the model SmolLM2-135M-Instruct, whose Q4_1 weights in float32 are the reference. Small
models lose more than large ones: these figures compare formats, and say little about the models that these are for.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

from bench.recoded import recoded
from bench.rows import arguments
from bench.windows import BATCH, cut, predict, read_text, scored
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.interface import Engine
from paceline.engine.layout import KV_DTYPES, KvDtype
from paceline.engine.registry import ComputeDtype, open_engine
from paceline.engine.step import Float32, Int32
from paceline.model.files import ModelFiles, locate
from paceline.model.pull import DEFAULT_MODEL, pull
from paceline.model.tokenizer import Tokenizer
from paceline.quantize.format import Format
from paceline.quantize.fp8 import Fp8BlockFormat, Fp8ChannelFormat
from paceline.quantize.int4 import Int4Format
from paceline.quantize.options import GROUPS


@dataclass(frozen=True)
class Variant:
    """A way to run the model; everything that it does not name is float32."""

    name: str
    weights: Format | Literal["float32", "bfloat16"] = "float32"
    kv: KvDtype = "float32"
    dtype: ComputeDtype = "float32"


@dataclass(frozen=True)
class Quality:
    """Of a variant's predictions, against those of the reference; `kl` in nats, `top1` the share that agree."""

    variant: str
    perplexity: float
    mean_kl: float
    max_kl: float
    top1: float


def variants() -> list[Variant]:
    return [
        Variant("weights bfloat16", weights="bfloat16"),
        *(Variant(f"weights int4, groups of {group}", weights=Int4Format(group)) for group in GROUPS),
        Variant("weights fp8, blocks of 128 x 128", weights=Fp8BlockFormat()),
        Variant("weights fp8, channels", weights=Fp8ChannelFormat()),
        *(Variant(f"KV {kv}", kv=kv) for kv in KV_DTYPES if kv != "float32"),
        Variant("arithmetic, weights, KV bfloat16", kv="bfloat16", dtype="bfloat16"),
    ]


def start(files: ModelFiles, variant: Variant, windows: Int32) -> Engine:
    engine = open_engine(
        "torch", files, dtype=variant.dtype, kv_dtype=variant.kv, threads=len(os.sched_getaffinity(0))
    )
    engine.load(lambda done, total: None)
    pages = min(len(windows), BATCH) * windows.shape[1] // PAGE_TOKENS * len(engine.layout.groups)
    engine.bind(np.zeros((pages, engine.layout.page_bytes), dtype=np.uint8))
    return engine


class Reference:
    """The log-probabilities of the model in float32, in a file: 200 kB for each token."""

    def __init__(self, files: ModelFiles, windows: Int32, path: Path) -> None:
        engine = start(files, Variant("float32"), windows)
        shape = (scored(windows), engine.vocab)
        self._log_probabilities = np.memmap(path, np.float32, "w+", shape=shape)
        at = 0
        for logits, _ in predict(engine, windows):
            self._log_probabilities[at : at + len(logits)] = _log_softmax(logits).numpy()
            at += len(logits)
        engine.close()
        self._windows = windows

    def compare(self, files: ModelFiles, variant: Variant) -> Quality:
        engine = start(files, variant, self._windows)
        loss, divergences, agreed, at = 0.0, [], 0, 0
        for logits, following in predict(engine, self._windows):
            expected = torch.from_numpy(self._log_probabilities[at : at + len(logits)])
            found = _log_softmax(logits)
            loss -= float(
                found.gather(1, torch.from_numpy(following).long()[:, None]).sum(dtype=torch.float64)
            )
            divergences.append(torch.sum(expected.exp() * (expected - found), 1))
            agreed += int((expected.argmax(1) == found.argmax(1)).sum())
            at += len(logits)
        engine.close()
        kl = torch.cat(divergences)
        return Quality(variant.name, math.exp(loss / at), float(kl.mean()), float(kl.max()), agreed / at)


def _log_softmax(logits: Float32) -> torch.Tensor:
    return torch.log_softmax(torch.from_numpy(logits), 1)


def measure(files: ModelFiles, windows: Int32) -> Iterator[Quality]:
    with tempfile.TemporaryDirectory() as directory:
        reference = Reference(files, windows, Path(directory) / "reference")
        yield reference.compare(files, Variant("float32"))
        for i, variant in enumerate(variants()):
            if variant.weights == "float32":
                yield reference.compare(files, variant)
                continue
            path = Path(directory) / str(i)
            format_ = None if variant.weights == "bfloat16" else variant.weights
            model, share = recoded(files, path, format_)
            name = f"{variant.name} ({share:.0%} of all)"
            yield replace(reference.compare(model, variant), variant=name)
            shutil.rmtree(path)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what to predict")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    options = parser.parse_args()
    files = locate(str(pull(options.model, lambda done, total: None)))
    tokens = Tokenizer.load(files).encode(read_text(options.text))
    windows = cut(tokens, 256, 4) if options.quick else cut(tokens, 512, 1000)
    title = (
        f"{files.name}: {windows.size} tokens in {len(windows)} windows, {scored(windows)} of them predicted"
    )
    table = Table("", title=title)
    for heading in ("perplexity", "mean KL", "max KL", "same best token"):
        table.add_column(heading, justify="right")
    found = []
    with Live(table, console=Console(width=120), auto_refresh=False) as live:
        for quality in measure(files, windows):
            found.append(quality)
            figures = (f"{quality.perplexity:.4f}", f"{quality.mean_kl:.2e}", f"{quality.max_kl:.2e}")
            table.add_row(quality.variant, *figures, f"{quality.top1:.2%}")
            live.refresh()
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(quality) for quality in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
