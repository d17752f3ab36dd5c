"""A name for a model and the revision of its weights, from a sample of them."""

import hashlib

from paceline.model.config import read_config
from paceline.model.files import ModelFiles
from paceline.model.stored import StoredTensor
from paceline.model.weights import open_weights

_SAMPLE = 4096
_SAMPLES = 4


def fingerprint(files: ModelFiles) -> bytes:
    """32 bytes that differ between models, and between a model and a fine-tune of it.

    SHA-256 over the configuration, and of each tensor its name, shape and storage format and 4 KiB at its beginning, at
    a third and two thirds of it, and at its end: 16 MB for a model of 1,000 tensors, whatever its size. Training moves
    values all over a matrix, so that a sample of each matrix sees it, as it sees the merge of an adapter into a single
    one. An edit of a few values elsewhere goes unseen. Raises `InvalidRequest` for files that are no model.
    """
    config = read_config(files)
    digest = hashlib.sha256(f"paceline/model/1 {config!r}".encode())
    for name, stored in open_weights(files, config).items():
        digest.update(f"{name} {stored.dtype} {stored.shape}".encode())
        for block in _samples(stored):
            digest.update(block)
    return digest.digest()


def _samples(stored: StoredTensor) -> list[bytes]:
    data = stored.data.reshape(-1)
    if data.size <= _SAMPLE * _SAMPLES:
        return [data.tobytes()]
    starts = [(data.size - _SAMPLE) * i // (_SAMPLES - 1) for i in range(_SAMPLES)]
    return [data[s : s + _SAMPLE].tobytes() for s in starts]
