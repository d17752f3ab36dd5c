"""The model to plan for, from its config.json alone: shipped with Paceline, in a directory, or in the hub's cache."""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from paceline.contracts.errors import InvalidRequest
from paceline.model import config_hf
from paceline.model.config import ModelConfig
from paceline.model.fields import Fields, read_json
from paceline.model.quantized.configuration import read_scheme
from paceline.model.quantized.scheme import Scheme
from paceline.planner.tensors import Tensor, tensors

SHAPES = Path(config_hf.__file__).parent / "shapes"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_MOST_MTP = 16


@dataclass(frozen=True, slots=True)
class Model:
    """`source` says where the shape comes from; `scheme` how the checkpoint is quantised, None when it is not.

    tensors: all weights, with those of `mtp_layers` layers for multi-token prediction last
    stored_bytes: of the weights that a directory has or lists, with whatever else they hold; None when it lists none
    """

    name: str
    source: str
    config: ModelConfig
    scheme: Scheme | None
    mtp_layers: int
    tensors: tuple[Tensor, ...]
    stored_bytes: int | None

    @property
    def has_experts(self) -> bool:
        return any(tensor.kind == "routed experts" for tensor in self.tensors)

    def served(self, *, mtp: bool) -> tuple[Tensor, ...]:
        """The tensors that serving loads, which are those for multi-token prediction only with `mtp`."""
        layers = len(self.config.layers)
        return tuple(t for t in self.tensors if mtp or t.layer is None or t.layer < layers)


def shipped() -> list[str]:
    """Names of the shapes that ship with Paceline."""
    return sorted(path.parent.name for path in SHAPES.glob("*/config.json"))


def find(name: str) -> Model:
    """The model `name`. Raises `InvalidRequest` when there is none such, or one that this program cannot run."""
    if name in shipped():
        told = read_json(SHAPES / name / _CONFIG).text("_source")
        return replace(read(SHAPES / name, name), source=told)
    path = Path(name).expanduser()
    directory = path.parent if path.name == _CONFIG and path.is_file() else path
    if directory.is_dir():
        return read(directory, directory.resolve().name)
    if _HUB_ID.fullmatch(name) and (cached := _cached(name)) is not None:
        return read(cached, name)
    meant = _resembling(name)
    raise InvalidRequest(
        f"no model {name!r}{f' (did you mean {meant}?)' if meant else ''}: expected one of {', '.join(shipped())}, "
        "a config.json, a directory with one, or a hub id whose config.json is in the hub's cache"
    )


def read(directory: Path, name: str) -> Model:
    """The model whose config.json lies in `directory`; its weights need not be there."""
    fields = read_json(directory / _CONFIG)
    config = config_hf.parse(fields, config_hf.eos_ids(directory))
    mtp_layers = _mtp_layers(config_hf.text_fields(fields))
    return Model(
        name=name,
        source=str(directory / _CONFIG),
        config=config,
        scheme=read_scheme(directory),
        mtp_layers=mtp_layers,
        tensors=tuple(tensors(config, mtp_layers)),
        stored_bytes=_stored_bytes(directory),
    )


def _resembling(name: str) -> str | None:
    """The shipped shape that `name` seems to stand for: published models have an owner before and a variant behind."""
    last = name.rsplit("/", 1)[-1].lower()
    beginnings = [shape for shape in shipped() if last.startswith(shape)]
    return next(iter(beginnings or get_close_matches(last, shipped(), n=1, cutoff=0.8)), None)


def _mtp_layers(text: Fields) -> int:
    count = text.whole("num_nextn_predict_layers", 0)
    if count > _MOST_MTP:
        raise text.refuse(f"num_nextn_predict_layers {count} is above {_MOST_MTP}")
    return count


def _stored_bytes(directory: Path) -> int | None:
    """By the index, else by the headers of the files."""
    index = directory / _INDEX
    if index.exists():
        metadata = read_json(index).section("metadata")
        if "total_size" in metadata:
            size = metadata.number("total_size")  # some writers make it a float
            if not 0 <= size < 2**63:
                raise metadata.refuse(f"total_size {size} is no number of bytes")
            return int(size)
    sizes = [_data_bytes(path) for path in directory.glob("*.safetensors")]
    return sum(sizes) if sizes else None


def _data_bytes(path: Path) -> int:
    """file = header length u64, little-endian | header | data"""
    try:
        with path.open("rb") as f:
            header = int.from_bytes(f.read(8), "little")
        return max(0, path.stat().st_size - 8 - header)
    except OSError as e:
        raise InvalidRequest(f"{path} cannot be read: {e}") from e


def _cached(repository: str) -> Path | None:
    # Imported here, because only this kind of name needs it.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(repository, _CONFIG)
    except HFValidationError:
        return None
    return Path(path).parent if isinstance(path, str) else None
