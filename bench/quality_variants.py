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
from paceline.engine.registry import ComputeDtype, open_engine
from paceline.model.files import ModelFiles
from paceline.quantize.fp8 import Fp8BlockFormat, Fp8ChannelFormat
from paceline.quantize.int4 import Int4Format
from paceline.quantize.options import GROUPS

EngineName: TypeAlias = Literal["torch"]


@dataclass(frozen=True)
class Variant:
    """An engine, what its weights and KV are stored as, and what the file's weights go through before it reads them."""

    engine: EngineName
    weights: str
    kv: KvDtype = "float32"
    recoding: Recoding | None = None
    dtype: ComputeDtype = "float32"


REFERENCE = Variant("torch", "the file's")


def variants(engine: EngineName) -> list[Variant]:
    """All that are compared with `REFERENCE`; those with the same recoding follow each other."""
    return [
        *(Variant("torch", "the file's", kv) for kv in KV_DTYPES if kv != "float32"),
        Variant("torch", "bfloat16", recoding="bfloat16"),
        *(Variant("torch", f"int4, groups of {group}", recoding=Int4Format(group)) for group in GROUPS),
        Variant("torch", "fp8, blocks of 128 x 128", recoding=Fp8BlockFormat()),
        Variant("torch", "fp8, channels", recoding=Fp8ChannelFormat()),
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


def load(files: ModelFiles, variant: Variant) -> Engine:
    """The engine of `variant` with its weights, still without pages."""
    threads = len(os.sched_getaffinity(0))
    engine = open_engine("torch", files, dtype=variant.dtype, kv_dtype=variant.kv, threads=threads)
    engine.load(lambda done, total: None)
    return engine
