"""Which engine runs a model, where nobody or the wrong one was named. Reads configuration and headers only."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, TypeAlias

from paceline.contracts.errors import InvalidRequest
from paceline.engine.cpu import build, levels
from paceline.engine.cpu.support import runs
from paceline.engine.cpu.weights import Weights
from paceline.model.config import read_config
from paceline.model.files import ModelFiles
from paceline.model.weights import open_weights

ComputeDtype: TypeAlias = Literal["auto", "float32", "bfloat16"]

_INSTALL_TORCH = "`make up TORCH=1`, or pip install 'paceline[torch]'"


@dataclass(frozen=True)
class Choice:
    """`reason` is why it is not the cpu engine, where that was not for the caller to say."""

    engine: Literal["cpu", "torch"]
    reason: str | None = None


def choose(
    name: Literal["auto", "cpu", "torch"],
    files: ModelFiles,
    *,
    device: str = "cpu",
    dtype: ComputeDtype = "auto",
    weights: Weights = "auto",
) -> Choice:
    """The engine that `name` means with these settings: for `auto` the cpu engine where that can run the model.

    Nothing is compiled or loaded for the answer; an engine that is named checks the model itself. Raises
    `InvalidRequest` where no installed engine will do, or where a setting belongs to the other one: `device` and
    `dtype` are torch's, `weights` the cpu engine's.
    """
    match name:
        case "cpu":
            if reason := _asks_for_torch(device, dtype):
                raise InvalidRequest(f"engine cpu: {reason}")
            return Choice("cpu")
        case "torch":
            return _torch(None, weights)
        case "auto":
            reason = _asks_for_torch(device, dtype) or _unfit(files) or _not_built()
            return _torch(reason, weights) if reason else Choice("cpu")


def _torch(reason: str | None, weights: Weights) -> Choice:
    because = f": {reason}" if reason else ""
    if weights != "auto":
        raise InvalidRequest(
            f"weights {weights} (PACELINE_WEIGHTS) are for the cpu engine, and this one is torch{because}",
            param="PACELINE_WEIGHTS",
        )
    if find_spec("torch") is None:
        raise InvalidRequest(f"engine torch is not installed ({_INSTALL_TORCH}){because}")
    return Choice("torch", reason)


def _asks_for_torch(device: str, dtype: ComputeDtype) -> str | None:
    if device != "cpu":
        return f"device {device} (PACELINE_DEVICE) is for torch"
    if dtype != "auto":
        return f"dtype {dtype} (PACELINE_DTYPE) is torch's arithmetic; the cpu engine takes weights (PACELINE_WEIGHTS)"
    return None


def _unfit(files: ModelFiles) -> str | None:
    config = read_config(files)
    obstacle = runs(config, open_weights(files, config))
    return f"{files.path}: the cpu engine does not run {obstacle}" if obstacle else None


def _not_built() -> str | None:
    try:
        if build.find_compiler() is None:
            build.library(levels.detect())  # finds what was compiled before
    except build.NoCompiler as e:
        return e.message
    return None
