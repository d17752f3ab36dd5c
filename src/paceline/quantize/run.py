"""Quantizing a model: from its directory to another one, however often it is interrupted.

OUT/.quantize/manifest.json                 options and fingerprint of the source, written first
OUT/.quantize/model-00001-of-00009.json     the report of a shard, written before it gets its name
OUT/model-00001-of-00009.safetensors        a finished shard
OUT/model.safetensors.index.json            written last: with it the checkpoint is complete
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.contracts.errors import InvalidRequest, Unavailable
from paceline.model.wheel import Progress
from paceline.quantize import files, report
from paceline.quantize.manifest import claim
from paceline.quantize.options import Options
from paceline.quantize.plan import Plan, make_plan
from paceline.quantize.report import LayerReport, Report
from paceline.quantize.shard import Shard, write_shard
from paceline.quantize.source import Source

_NOTES = ".quantize"
_INDEX = "model.safetensors.index.json"
_CONFIGS = ("quantization_config", "compression_config")


def quantize(source: Path, output: Path, options: Options, progress: Progress) -> Report:
    """Make the checkpoint `output` from `source`, or finish one that was interrupted; shards that are there stay.

    `progress` hears bytes of the source that are done, and all of them. Raises `InvalidRequest` for a source or options
    that cannot work, and `Unavailable` when the output cannot be written, which leaves a state that can be continued.
    """
    model = Source(source)
    plan = make_plan(model, options)
    try:
        with _notes(output) as notes:
            claim(notes, options, model.fingerprint())
            layers = _write_shards(plan, output, notes, progress)
            _write_rest(model, plan, options, output)
    except OSError as e:
        reason = "the disk is full" if e.errno in (errno.ENOSPC, errno.EDQUOT) else str(e)
        raise Unavailable(
            f"{output} cannot be written: {reason}; the same command continues where it stopped"
        ) from e
    return report.join(layers, plan.kept)


@contextmanager
def _notes(output: Path) -> Iterator[Path]:
    """The directory of what this package remembers, for this process alone."""
    notes = output / _NOTES
    try:
        if not notes.is_dir() and output.exists() and any(output.iterdir()):
            raise InvalidRequest(f"{output} is not empty, and was not begun by this command")
        notes.mkdir(parents=True, exist_ok=True)
        directory = os.open(notes, os.O_RDONLY)
    except OSError as e:
        raise Unavailable(f"{output} cannot be begun: {e}") from e
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield notes
    except BlockingIOError as e:
        raise InvalidRequest(f"another process writes {output} now") from e
    finally:
        os.close(directory)


def _write_shards(plan: Plan, output: Path, notes: Path, progress: Progress) -> list[dict[str, LayerReport]]:
    total = sum(shard.source_bytes for shard in plan.shards)
    missing = [shard for shard in plan.shards if not (output / shard.name).exists()]
    if (needed := sum(shard.nbytes for shard in missing)) > (free := shutil.disk_usage(output).free):
        raise Unavailable(f"{output}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB free")
    done = total - sum(shard.source_bytes for shard in missing)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    for shard in missing:
        _write_shard(shard, output, notes, advance)
    return [_read_note(notes, shard) for shard in plan.shards]


def _write_shard(shard: Shard, output: Path, notes: Path, advance: Callable[[int], None]) -> None:
    part = notes / f"{shard.name}.part"
    try:
        errors = write_shard(shard, part, len(os.sched_getaffinity(0)), advance)
        files.write_json(_note(notes, shard), report.encode(report.of_shard(shard, errors)))
        files.publish(part, output / shard.name)
    except BaseException:
        # It may be what fills the disk.
        part.unlink(missing_ok=True)
        raise


def _note(notes: Path, shard: Shard) -> Path:
    return notes / Path(shard.name).with_suffix(".json")


def _read_note(notes: Path, shard: Shard) -> dict[str, LayerReport]:
    path = _note(notes, shard)
    try:
        return report.decode(path.read_bytes())
    except (FileNotFoundError, ValueError) as e:
        raise InvalidRequest(
            f"{path} is missing or damaged: {e}; remove {shard.name} to make both anew"
        ) from e


def _write_rest(source: Source, plan: Plan, options: Options, output: Path) -> None:
    for path in source.other_files():
        files.copy(path, output / path.name)
    # Tied heads have no tensor, and a linear layer all the same.
    kept = sorted({"lm_head", *plan.kept})
    config = {key: value for key, value in source.config.items() if key not in _CONFIGS}
    if isinstance(text := config.get("text_config"), dict):
        config["text_config"] = {key: value for key, value in text.items() if key not in _CONFIGS}
    files.write_json(output / "config.json", {**config, "quantization_config": options.format().config(kept)})
    names = {tensor.name: shard.name for shard in plan.shards for tensor in shard.tensors}
    size = sum(shard.nbytes for shard in plan.shards)
    files.write_json(
        output / _INDEX, {"metadata": {"total_size": size}, "weight_map": dict(sorted(names.items()))}
    )
