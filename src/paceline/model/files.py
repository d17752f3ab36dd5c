"""Where a model's files are."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.contracts.errors import InvalidRequest

_HUB_SNAPSHOT = re.compile(r"models--(.+?)--(.+)/snapshots/[0-9a-f]+/?$")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model on disk: a GGUF file, or a Hugging Face directory of config.json and safetensors."""

    name: str
    kind: Literal["gguf", "hf"]
    path: Path


def locate(model: str) -> ModelFiles:
    """The files that `model`, a path, names. Raises `InvalidRequest` when they are not there."""
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise InvalidRequest(f"{path} is no .gguf file; a Hugging Face model is named by its directory")
        return ModelFiles(path.stem, "gguf", path)
    if not path.is_dir():
        raise InvalidRequest(f"no model at {path}: expected a .gguf file or a Hugging Face directory")
    if not (path / "config.json").is_file():
        raise InvalidRequest(f"{path} has no config.json, so it is no Hugging Face model directory")
    # What an index names and is not there is missed by its name, where the shards are opened.
    if not any(path.glob("*.safetensors")) and not (path / "model.safetensors.index.json").exists():
        other = next(path.glob("*.bin"), None)
        instead = f", but {other.name}: save it as safetensors first" if other else ""
        raise InvalidRequest(f"{path} has no .safetensors files{instead}")
    snapshot = _HUB_SNAPSHOT.search(path.as_posix())
    return ModelFiles("/".join(snapshot.groups()) if snapshot else path.resolve().name, "hf", path)
