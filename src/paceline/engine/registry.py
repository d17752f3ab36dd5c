"""Engines by the name that `--engine` takes; each is imported only when it is asked for."""

from typing import Literal, TypeAlias

from paceline.contracts.errors import InvalidRequest
from paceline.engine.interface import Engine
from paceline.engine.layout import KvDtype
from paceline.model.config import read_config
from paceline.model.files import ModelFiles

EngineName: TypeAlias = Literal["torch", "fake"]
ComputeDtype: TypeAlias = Literal["auto", "float32", "bfloat16"]


def open_engine(
    name: EngineName,
    files: ModelFiles | None,
    *,
    dtype: ComputeDtype = "auto",
    kv_dtype: KvDtype = "bfloat16",
    device: str = "cpu",
    threads: int = 1,
    step_s: float = 0.0,
) -> Engine:
    """An engine that has read its configuration but no weights.

    `fake` needs no `files` and of the rest knows only `step_s`, the seconds that a step takes; others ignore that.

    Raises `InvalidRequest` for a model that the engine cannot run.
    """
    if name == "fake":
        from paceline.engine.fake import FakeEngine

        return FakeEngine(read_config(files) if files else None, base_s=step_s)
    if files is None:
        raise InvalidRequest(f"engine {name} needs a model")
    from paceline.engine.torch.engine import TorchEngine

    return TorchEngine(files, dtype=dtype, kv_dtype=kv_dtype, device=device, threads=threads)
