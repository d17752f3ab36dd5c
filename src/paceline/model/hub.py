"""Models from the Hugging Face hub."""

from pathlib import Path
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils.tqdm import tqdm

from paceline.contracts.errors import InvalidRequest, Unavailable
from paceline.model.wheel import Progress

_FILES = [
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tiktoken.model",
    "tokenizer_config.json",
    "chat_template.jinja",
    "*.safetensors",
    "model.safetensors.index.json",
]


def download(repository: str, progress: Progress) -> Path:
    """The directory of `owner/name` in the hub's own cache, fetched as far as it is not there.

    Raises `InvalidRequest` when there is no such model or this user may not have it, `Unavailable` when the hub does
    not answer.
    """
    try:
        return Path(snapshot_download(repository, allow_patterns=_FILES, tqdm_class=_reporting(progress)))
    except (RepositoryNotFoundError, HFValidationError) as e:
        raise InvalidRequest(f"{repository} cannot be had from the Hugging Face hub: {e}") from e
    except (HTTPError, OSError) as e:
        raise Unavailable(f"the Hugging Face hub does not give {repository}: {e}") from e


def _reporting(progress: Progress) -> type[tqdm]:
    """A progress bar that shows nothing and calls `progress` with the bytes of all files."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # Of the hub's bars only one counts bytes on disk; another counts those on the wire, a third files.
            self._reports = kwargs.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            if self._reports:
                progress(self.n, int(self.total or 0))

    return Bar
