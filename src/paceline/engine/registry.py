"""Engines by the name that `--engine` takes; each is imported only when it is asked for."""

from typing import Literal, TypeAlias

import structlog

from paceline.contracts.errors import InvalidRequest
from paceline.engine.choice import ComputeDtype, choose
from paceline.engine.cpu.weights import Weights
from paceline.engine.interface import Engine
from paceline.engine.layout import KvDtype
from paceline.model.config import read_config
from paceline.model.files import ModelFiles

__all__ = ["ComputeDtype", "EngineName", "Weights", "open_engine"]

EngineName: TypeAlias = Literal["auto", "cpu", "torch", "fake"]

log = structlog.get_logger(__name__)


def open_engine(
    name: EngineName,
    files: ModelFiles | None,
    *,
    dtype: ComputeDtype = "auto",
    weights: Weights = "auto",
    kv_dtype: KvDtype = "bfloat16",
    device: str = "cpu",
    threads: int = 1,
    step_s: float = 0.0,
) -> Engine:
    """An engine that has read its configuration but no weights; see `choose` for what `auto` is.

    `fake` needs no `files`, says what the script of a model directory says if there is one, and of the rest knows only
    `step_s`, the seconds that a step takes; others ignore that.

    Raises `InvalidRequest` for a model that the engine cannot run, or settings that are not for it.
    """
    if name == "fake":
        from paceline.engine.fake import FakeEngine
        from paceline.engine.scripted import ScriptedEngine, has_script

        if files is not None and has_script(files):
            return ScriptedEngine(files, base_s=step_s)
        return FakeEngine(read_config(files) if files else None, base_s=step_s)
    if files is None:
        raise InvalidRequest(f"engine {name} needs a model")
    choice = choose(name, files, device=device, dtype=dtype, weights=weights)
    if choice.reason:
        log.info("engine_chosen", engine=choice.engine, reason=choice.reason)
    if choice.engine == "cpu":
        from paceline.engine.cpu.engine import CpuEngine

        return CpuEngine(files, weights=weights, kv_dtype=kv_dtype, threads=threads)
    from paceline.engine.torch.engine import TorchEngine

    return TorchEngine(files, dtype=dtype, kv_dtype=kv_dtype, device=device, threads=threads)
