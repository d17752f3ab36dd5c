"""`paceline pull`: a model onto this machine."""

import os
from typing import Annotated

import typer

from paceline.cli.progress import download
from paceline.cli.screen import Screen
from paceline.contracts.errors import PacelineError
from paceline.model.files import ModelFiles, locate
from paceline.model.pull import DEFAULT_MODEL
from paceline.model.pull import pull as fetch


def find(model: str | None, screen: Screen) -> ModelFiles:
    """The files of `model`, fetched with a progress bar where they are not here yet; None is the default model.

    Raises `InvalidRequest` and `Unavailable`.
    """
    ref = model or DEFAULT_MODEL
    with download(screen, f"fetching {ref}") as progress:
        path = fetch(ref, progress)
    return locate(str(path))


def pull(
    model: Annotated[
        str | None,
        typer.Argument(help="An id on the Hugging Face hub.", show_default="SmolLM2-135M-Instruct"),
    ] = None,
) -> None:
    """Fetch a model and verify it; quick when it is there already."""
    screen = Screen()
    try:
        # Containers name the model like that.
        files = find(model or os.environ.get("PACELINE_MODEL"), screen)
    except PacelineError as e:
        screen.error(f"paceline pull: {e}")
        raise typer.Exit(1) from e
    screen.line(f"{files.name} is at {files.path}")
