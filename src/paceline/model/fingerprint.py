"""A name for a model and the revision of its weights, from a sample of them."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from paceline.model.config import ModelConfig, read_config
from paceline.model.files import ModelFiles
from paceline.model.weights import Stored, open_weights

_SAMPLE = 4096
_SAMPLES = 4


def fingerprint(files: ModelFiles) -> bytes:
    """32 bytes that differ between models, and between a model and a fine-tune of it.

    SHA-256 over the configuration, and of each tensor its name, shape and storage format and rows of some 4 KiB at its
    beginning, at a third and two thirds of it, and at its end: 16 MB for a model of 1,000 tensors, whatever its size.
    Training moves values all over a matrix, so that a sample of each matrix sees it, as it sees the merge of an adapter
    into a single one. An edit of a few values elsewhere goes unseen.

    Raises `InvalidRequest` for files that are no model.
    """
    config = read_config(files)
    return fingerprint_of(config, open_weights(files, config))


def fingerprint_of(config: ModelConfig, weights: Mapping[str, Stored]) -> bytes:
    """`fingerprint` for who has opened the files already: a GGUF file's header alone takes 10 ms."""
    digest = hashlib.sha256(f"paceline/model/2 {config!r}".encode())
    for name, stored in weights.items():
        digest.update(f"{name} {stored.storage} {stored.shape}".encode())
        for array in stored.arrays:
            for block in _samples(array):
                digest.update(block)
    return digest.digest()


def _samples(array: npt.NDArray[Any]) -> list[bytes]:
    """Some rows each; a matrix may be a view whose rows do not touch."""
    rows = array.reshape(-1, array.shape[-1])
    count = max(1, _SAMPLE // (rows.shape[1] * rows.itemsize))
    if len(rows) <= count * _SAMPLES:
        return [rows.tobytes()]
    starts = [(len(rows) - count) * i // (_SAMPLES - 1) for i in range(_SAMPLES)]
    return [rows[s : s + count].tobytes() for s in starts]
