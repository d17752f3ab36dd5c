"""The Hugging Face directory that a checkpoint is made from."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.contracts.errors import InvalidRequest
from paceline.model.fused import FusedExperts
from paceline.model.quantized.configuration import read_scheme
from paceline.model.quantized.formats import Fp8Format
from paceline.model.quantized.fp8 import open_fp8
from paceline.model.safetensors import SafetensorsDirectory, StoredArray
from paceline.quantize.work import Matrix

FLOATS = ("F32", "F16", "BF16")
FP8 = "F8_E4M3"
_LLAMA4 = ("llama4", "llama4_text")
_CONFIG = "config.json"
# What is written anew, and the same weights once more in formats that nobody reads together with these.
_NOT_COPIED = {_CONFIG, "model.safetensors.index.json", "hf_quant_config.json"}
_SAMPLE = 4096
_SAMPLES = 64
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


class Source:
    """Its tensors by name. All methods raise `InvalidRequest` for what is missing, damaged or of an unknown type."""

    def __init__(self, directory: Path) -> None:
        """Raises `InvalidRequest` for a directory that is no model, or one that is quantized other than in FP8."""
        self.directory = directory
        try:
            self._config_bytes = (directory / _CONFIG).read_bytes()
            config = json.loads(self._config_bytes)
        except (OSError, ValueError, RecursionError) as e:
            raise InvalidRequest(f"{directory / _CONFIG} cannot be read: {e}") from e
        if not isinstance(config, dict):
            raise InvalidRequest(f"{directory / _CONFIG} holds no JSON object")
        self.config: dict[str, Any] = config
        self._scheme = read_scheme(directory)
        for rule in self._scheme.rules if self._scheme else ():
            if not isinstance(rule.format, Fp8Format):
                raise InvalidRequest(
                    f"{directory} is quantized already, in another format than FP8; quantize what it was made from"
                )
        self._tensors = SafetensorsDirectory(directory)

    def names(self) -> Iterator[str]:
        """Of all tensors, in the order of the files."""
        return iter(self._tensors)

    def dtype(self, name: str) -> str | None:
        """As safetensors calls it; None when there is no such tensor."""
        return self._tensors.dtype(name)

    def array(self, name: str) -> StoredArray:
        return self._tensors.array(name)

    def matrix(self, module: str) -> Matrix:
        """The weight of a linear layer, in floating point or FP8."""
        name = f"{module}.weight"
        if self.dtype(name) != FP8:
            return self._tensors.tensor(name)
        found = self._scheme.format(module) if self._scheme else None
        if not isinstance(found, Fp8Format):
            raise self.array(name).refuse(f"has type {FP8}, and {_CONFIG} does not say how it is scaled")
        rows, columns = self.array(name).values.shape
        return open_fp8(self._tensors, module, (rows, columns), found)

    def experts(self, name: str) -> list[tuple[str, Matrix]] | None:
        """The modules of all experts in the tensor `name`, which holds them of one layer: of Llama 4, whose experts
        have names of their own in quantized checkpoints. None for another model."""
        if self.config.get("model_type") not in _LLAMA4:
            return None
        prefix, _, kind = name.rpartition(".")
        experts, columns, rows = self.array(name).values.shape
        kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
        shape = (rows // len(kinds), columns)
        found: list[tuple[str, Matrix]] = []
        fused = FusedExperts(self._tensors, scheme=None)
        for module in (f"{prefix}.{expert}.{k}" for expert in range(experts) for k in kinds):
            if (matrix := fused.open(f"{module}.weight", shape)) is None:
                raise self.array(name).refuse("is of no known name among the experts")
            found.append((module, matrix))
        return found

    def other_files(self) -> Iterator[Path]:
        """What belongs to the model besides configuration and weights: the tokenizer, the template, the licence."""
        for path in sorted(self.directory.iterdir()):
            if path.name in _NOT_COPIED or path.suffix in _WEIGHTS or path.name.startswith("."):
                continue
            if path.is_file():
                yield path

    def fingerprint(self) -> str:
        """SHA-256 (hex) over config.json and of each file of weights its name, its size, and 64 samples of 4 KiB, from
        its header to its end. An edit of a few values between the samples goes unseen."""
        digest = hashlib.sha256(self._config_bytes)
        for path in sorted(self.directory.glob("*.safetensors")):
            digest.update(path.name.encode())
            try:
                with path.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    digest.update(size.to_bytes(8, "little"))
                    for i in range(_SAMPLES):
                        file.seek(max(size - _SAMPLE, 0) * i // (_SAMPLES - 1))
                        digest.update(file.read(_SAMPLE))
            except OSError as e:
                raise InvalidRequest(f"{path} cannot be read: {e}") from e
        return digest.hexdigest()
