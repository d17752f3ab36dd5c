"""`Engine` on PyTorch."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from paceline.contracts.errors import InvalidRequest
from paceline.engine.interface import Pages, Progress
from paceline.engine.layout import KvDtype, plan_layout
from paceline.engine.profile import KvProfile
from paceline.engine.step import Float32, Step
from paceline.engine.torch.attention import StepAttention
from paceline.engine.torch.build import Builder, ropes_of
from paceline.engine.torch.calibrate import calibrate, sample_tokens
from paceline.engine.torch.decoder import Decoder, Forward
from paceline.engine.torch.loader import Loader
from paceline.engine.torch.pool import PagePool
from paceline.engine.torch.rope import Ropes
from paceline.engine.torch.scales import cache_scales
from paceline.model.config import read_config
from paceline.model.files import ModelFiles
from paceline.model.fingerprint import fingerprint
from paceline.model.weights import open_weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchEngine:
    """Implements `Engine`. Pages stay in host memory; on another device each layer copies what it reads and writes."""

    name = "torch"

    def __init__(
        self, files: ModelFiles, *, dtype: str, kv_dtype: KvDtype, device: str, threads: int
    ) -> None:
        """`dtype` is that of weights and arithmetic; `auto` takes bfloat16 where the processor multiplies it natively.

        Raises `InvalidRequest` for a model that is not of a known family, or a device that is not there.
        """
        self._files = files
        self._config = read_config(files)
        self._device = _open_device(device)
        self._dtype = _DTYPES[dtype] if dtype != "auto" else _native_dtype(self._device)
        self._threads = threads
        self._model: Decoder | None = None
        self._pool: PagePool | None = None
        self.kv_dtype = kv_dtype
        self.layout = plan_layout(self._config, kv_dtype)

    @property
    def vocab(self) -> int:
        return self._config.vocab

    @property
    def context(self) -> int:
        return self._config.context

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._config.eos_ids

    @cached_property
    def fingerprint(self) -> bytes:
        return fingerprint(self._files)

    def load(self, progress: Progress) -> None:
        torch.set_num_threads(self._threads)
        stored = open_weights(self._files, self._config)
        with torch.inference_mode():
            loader = Loader(stored, self._dtype, self._device, progress)
            model = Builder(self._config, loader).decoder()
            self._ropes = Ropes(ropes_of(self._config), self._device, self._dtype)
            scales = cache_scales(self._files, self._config, self.layout, lambda: self._calibrate(model))
        self.profile = KvProfile(self.fingerprint, self.kv_dtype, self.layout, scales)
        self._model = model

    def bind(self, pages: Pages) -> None:
        with torch.inference_mode():
            scales = {key: self._scale(values) for key, values in self.profile.plane_scales()}
            self._pool = PagePool(torch.from_numpy(pages), self.layout, scales)

    @torch.inference_mode()
    def execute(self, step: Step) -> Float32:
        if self._model is None or self._pool is None:
            raise RuntimeError("execute before load and bind")
        self._pool.begin(step)
        if not len(step.tokens):
            return np.empty((0, self.vocab), dtype=np.float32)
        device = self._device
        positions = torch.from_numpy(step.positions).to(device)
        forward = Forward(
            positions, self._ropes.at(positions), StepAttention(step, self._pool, device, self._dtype)
        )
        logits = self._model(
            torch.from_numpy(step.tokens).to(device), forward, torch.from_numpy(step.logit_rows).to(device)
        )
        result: Float32 = logits.to("cpu", torch.float32).contiguous().numpy()
        return result

    def _calibrate(self, model: Decoder) -> tuple[float, ...]:
        tokens = sample_tokens(self._files, self._config)
        return calibrate(model, self._config, self._ropes, self.layout, tokens, self._dtype)

    def _scale(self, values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, device=self._device).view(-1, 1, 1)

    def close(self) -> None:
        self._model = None
        self._pool = None


def _open_device(device: str) -> torch.device:
    try:
        opened = torch.device(device)
    except RuntimeError as e:
        raise InvalidRequest(f"no such device: {device}") from e
    if opened.type == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(f"device {device}: this machine has no usable NVIDIA GPU")
    return opened


def _native_dtype(device: torch.device) -> torch.dtype:
    capable = torch.cpu.get_capabilities() if device.type == "cpu" else {"avx512_bf16": True}
    native = any(capable.get(unit) for unit in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if native else torch.float32
