"""What an output directory is being made from, so that nobody continues it with something else."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec

from paceline.contracts.errors import InvalidRequest
from paceline.quantize.files import write_json
from paceline.quantize.options import Options

_VERSION = 1


def claim(directory: Path, options: Options, source: str) -> None:
    """Begin or continue the work that leaves its notes in `directory`; `source` is the source's fingerprint.

    Raises `InvalidRequest` when it was begun with other options or another source.
    """
    path = directory / "manifest.json"
    ours = {"version": _VERSION, "options": json.loads(json.dumps(asdict(options))), "source": source}
    try:
        theirs = json.loads(path.read_bytes())
    except FileNotFoundError:
        write_json(path, ours)
        return
    except ValueError as e:
        raise InvalidRequest(f"{path} is damaged: {e}") from e
    if theirs != ours:
        raise InvalidRequest(
            f"{directory.parent} was begun {_difference(theirs, ours)}, remove it or choose another directory"
        )


def _difference(theirs: object, ours: dict[str, object]) -> str:
    if not isinstance(theirs, dict) or theirs.get("version") != ours["version"]:
        return "by another version of this program: continue with that"
    if theirs.get("options") != ours["options"]:
        return f"with other options: give {_command_line(theirs.get('options'))}"
    return "from another source, or this one has changed since: restore it"


def _command_line(options: object) -> str:
    """The options as they are typed."""
    try:
        return shlex.join(_words(msgspec.convert(options, Options)))
    except (msgspec.ValidationError, InvalidRequest):
        return "those"


def _words(options: Options) -> Iterator[str]:
    yield from ("--to", options.target, "--group", str(options.group), "--fp8", options.fp8)
    for pattern in options.keep:
        yield from ("--keep", pattern)
    if options.experts_only:
        yield "--experts-only"
    yield from ("--shard-gb", str(options.shard_bytes / 1e9))
