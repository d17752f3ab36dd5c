"""Where the scales of an FP8 cache come from: the checkpoint, else a calibration."""

from collections.abc import Callable

import structlog

from paceline.engine.layout import PageLayout
from paceline.engine.profile import needs_scales, scales_of
from paceline.model.config import ModelConfig
from paceline.model.files import ModelFiles
from paceline.model.names import Names
from paceline.model.quantized.kv_scales import open_kv_scales
from paceline.model.safetensors import SafetensorsDirectory

log = structlog.get_logger(__name__)


def cache_scales(
    files: ModelFiles,
    config: ModelConfig,
    layout: PageLayout,
    calibrate: Callable[[], tuple[float, ...]],
) -> tuple[float, ...]:
    """`KvProfile.scales` of `layout`: those of the checkpoint if it has them for every layer."""
    if not needs_scales(layout):
        return ()
    if found := _stored_scales(files, config, layout):
        log.info("kv_scales", source="checkpoint")
        return found
    found = calibrate()
    log.info("kv_scales", source="a sample of text", smallest=min(found), largest=max(found))
    return found


def _stored_scales(files: ModelFiles, config: ModelConfig, layout: PageLayout) -> tuple[float, ...] | None:
    if files.kind == "gguf":
        return None
    source = SafetensorsDirectory(files.path)
    names = Names.of(config.family, source)
    scales: list[float] = []
    for _, _, plane in layout.planes():
        if count := scales_of(plane):
            found = open_kv_scales(source, names.stored(f"layers.{plane.layer}.self_attn"))
            # A latent is key and value at once: its one scale stands where that of keys does.
            scales += [s for s in (found.key, found.value)[:count] if s is not None]
    complete = len(scales) == sum(scales_of(plane) for _, _, plane in layout.planes())
    return tuple(scales) if complete else None
