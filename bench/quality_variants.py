"""The ways to run a model whose quality is compared."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

from bench.recoded import Recoding, recoded
from paceline.engine.interface import Engine
from paceline.engine.layout import KV_DTYPES, KvDtype
from paceline.engine.registry import ComputeDtype, Weights, open_engine
from paceline.model.files import ModelFiles
from paceline.quantize.fp8 import Fp8BlockFormat, Fp8ChannelFormat
from paceline.quantize.int4 import Int4Format
from paceline.quantize.options import GROUPS

Compared: TypeAlias = Literal["cpu", "torch"]


@dataclass(frozen=True)
class Variant:
    """An engine, the `name` of its weights and what KV is stored as.

    Weights go through `recoding` before the engine reads them. `weights` is what the cpu engine makes of them, `dtype`
    torch's arithmetic.
    """

    engine: Compared
    name: str
    kv: KvDtype
    recoding: Recoding | None = None
    weights: Weights = "auto"
    dtype: ComputeDtype = "float32"

    def open(self, files: ModelFiles) -> Engine:
        """The engine with its weights, still without pages."""
        threads = len(os.sched_getaffinity(0))
        if self.engine == "cpu":
            engine = open_engine("cpu", files, weights=self.weights, kv_dtype=self.kv, threads=threads)
        else:
            engine = open_engine("torch", files, dtype=self.dtype, kv_dtype=self.kv, threads=threads)
        engine.load(lambda done, total: None)
        return engine


_OWN = "the file's"
REFERENCE = Variant("torch", _OWN, "float32")
DEFAULT = Variant("cpu", _OWN, "bfloat16")
"""What is served where nobody asks for anything else."""


def variants(engine: Compared, *, crossed: bool) -> list[Variant]:
    """All that are compared with `REFERENCE`; those with the same recoding follow each other.

    `crossed` are all kinds of weights with all kinds of KV, otherwise each comes with what is usual of the other.
    """
    return _cpu(crossed) if engine == "cpu" else _torch()


def _cpu(crossed: bool) -> list[Variant]:
    """Matrices of 8 and 4 bits are made from the file's values in float32, as from a file that has more bits."""
    kinds = KV_DTYPES if crossed else (DEFAULT.kv,)
    made: list[tuple[Weights, Recoding | None]] = [
        ("bfloat16", None),
        ("int8", "float32"),
        ("int4", "float32"),
    ]
    return [
        *(Variant("cpu", _OWN, kv) for kv in KV_DTYPES),
        Variant("cpu", "float32", "float32", weights="float32"),
        *(
            Variant("cpu", weights, kv, recoding, weights=weights)
            for weights, recoding in made
            for kv in kinds
        ),
    ]


def _torch() -> list[Variant]:
    """Storage formats of `paceline quantize` and of KV, each with all else in float32."""
    formats: dict[str, Recoding] = {
        "bfloat16": "bfloat16",
        **{f"int4, groups of {group}": Int4Format(group) for group in GROUPS},
        "fp8, blocks of 128 x 128": Fp8BlockFormat(),
        "fp8, channels": Fp8ChannelFormat(),
    }
    return [
        *(Variant("torch", _OWN, kv) for kv in KV_DTYPES if kv != "float32"),
        *(Variant("torch", name, "float32", recoding) for name, recoding in formats.items()),
        Variant("torch", "bfloat16, as arithmetic", "bfloat16", dtype="bfloat16"),
    ]


@contextmanager
def source(files: ModelFiles, recoding: Recoding | None) -> Iterator[tuple[ModelFiles, float]]:
    """What variants with `recoding` read, until the context ends, and the share of all weights that it changed."""
    if recoding is None:
        yield files, 0.0
        return
    with TemporaryDirectory() as directory:
        yield recoded(files, Path(directory) / "model", recoding)
