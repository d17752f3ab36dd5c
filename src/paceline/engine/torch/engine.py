"""`Engine` on PyTorch."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.engine.calibration import calibrate, sample_tokens
from paceline.engine.interface import Outcome, Pages, Progress
from paceline.engine.layout import KvDtype, plan_layout
from paceline.engine.masks import Masks
from paceline.engine.profile import KvProfile
from paceline.engine.scales import cache_scales
from paceline.engine.step import Float32, Step
from paceline.engine.support import check_weights
from paceline.engine.torch import kernels
from paceline.engine.torch.attention import Attention, StepAttention
from paceline.engine.torch.build import Builder, ropes_of
from paceline.engine.torch.calibrate import runner
from paceline.engine.torch.decoder import Decoder, Forward
from paceline.engine.torch.device_pages import DevicePages
from paceline.engine.torch.drawing import draw
from paceline.engine.torch.kernel_attention import KernelAttention
from paceline.engine.torch.kernels.rows import MAX_DRAFTS
from paceline.engine.torch.loader import Loader
from paceline.engine.torch.planes import Slots
from paceline.engine.torch.pool import PagePool
from paceline.engine.torch.rope import Ropes
from paceline.engine.torch.step_rows import most_drafts
from paceline.engine.torch.upload import upload
from paceline.engine.torch.views import Views, kernels_fit
from paceline.model.config import read_config
from paceline.model.files import ModelFiles
from paceline.model.fingerprint import fingerprint
from paceline.model.quantized.fp8 import Fp8Matrix
from paceline.model.weights import Stored, open_weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_RESERVE = 10
"""One in so many bytes of a GPU is left to a step's activations and to what libraries take."""


class TorchEngine:
    """Implements `Engine`. On a GPU it keeps pages of its own, and kernels do what plain PyTorch does on a CPU."""

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
        if kv_dtype.startswith("fp8"):
            _require_fp8(self._device)
        self._dtype = _DTYPES[dtype] if dtype != "auto" else _native_dtype(self._device)
        self._threads = threads
        self._model: Decoder | None = None
        self._pool: PagePool | None = None
        self._views: Views | None = None
        self._mirror: DevicePages | None = None
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

    @property
    def in_place(self) -> bool:
        return self._device.type == "cpu"

    @property
    def page_memory(self) -> int | None:
        if self.in_place:
            return None
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return max(0, free - total // _RESERVE)

    def load(self, progress: Progress) -> None:
        stored = open_weights(self._files, self._config)
        check_weights(stored, self._files.path, self._device.type)
        if any(isinstance(matrix, Fp8Matrix) for matrix in stored.values()):
            _require_fp8(self._device)
        self._build(stored, progress)

    def _build(self, stored: Mapping[str, Stored], progress: Progress) -> None:
        """Of the tensors that `model.parts` names."""
        torch.set_num_threads(self._threads)
        self._enter()
        with torch.inference_mode():
            loader = Loader(stored, self._dtype, self._device, progress)
            model = Builder(self._config, loader).decoder()
            self._ropes = Ropes(ropes_of(self._config), self._device, self._dtype)
            scales = self._scales_of(model)
        self.profile = KvProfile(self.fingerprint, self.kv_dtype, self.layout, scales)
        self._model = model

    def bind(self, pages: Pages) -> None:
        self._enter()
        with torch.inference_mode():
            if not self.in_place:
                self._mirror = DevicePages(pages, self._device)
            own = torch.from_numpy(pages) if self._mirror is None else self._mirror.pages
            scales = dict(self.profile.plane_scales())
            tensors = {key: self._scale(values) for key, values in scales.items()}
            self._pool = PagePool(own, self.layout, tensors)
            if kernels.triton_runs(self._device) and kernels_fit(self.layout):
                self._views = Views(own, self.layout, scales)

    @torch.inference_mode()
    def execute(self, step: Step) -> Float32:
        logits: Float32 = self._run(step).cpu().numpy()
        return logits

    @torch.inference_mode()
    def sample(self, step: Step, samplings: Sequence[Sampling | None], masks: Masks | None = None) -> Outcome:
        if not kernels.triton_runs(self._device):
            return self.execute(step)
        return draw(self._run(step), step.positions[step.logit_rows], samplings, masks)

    @torch.inference_mode()
    def export_pages(self, pages: Sequence[int]) -> None:
        if self._mirror is not None:
            self._enter()
            self._mirror.to_host(pages)

    @torch.inference_mode()
    def import_pages(self, pages: Sequence[int]) -> None:
        if self._mirror is not None:
            self._enter()
            self._mirror.from_host(pages)

    def _run(self, step: Step) -> Tensor:
        """Logits float32 [R, vocab] on the device."""
        if self._model is None or self._pool is None:
            raise RuntimeError("execute before load and bind")
        self._enter()
        self._pool.begin(step)
        if not len(step.tokens):
            return torch.empty(0, self.vocab)
        arrays = (step.tokens, step.positions, step.logit_rows, step.slots)
        tokens, positions, logit_rows, slots = upload(arrays, self._device)
        attention = self._attention(step, self._pool, [Slots(group) for group in slots])
        forward = Forward(positions, self._ropes.at(positions), attention)
        logits = self._model(tokens, forward, logit_rows).float().contiguous()
        if self._device.type == "cuda" and not len(logits):
            # Nobody waits for logits, but for the step: it is timed, and errors belong to it.
            torch.cuda.current_stream().synchronize()
        return logits

    def _attention(self, step: Step, pool: PagePool, slots: list[Slots]) -> Attention:
        gathering = StepAttention(step, pool, slots, self._device, self._dtype)
        if self._views is None or most_drafts(step) > MAX_DRAFTS:
            return gathering
        return KernelAttention(step, self._views, self.layout, slots, gathering, self._device)

    def _enter(self) -> None:
        """The thread that calls uses the engine's GPU; Triton launches on whichever is current."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def _scales_of(self, model: Decoder) -> tuple[float, ...]:
        return cache_scales(self._files, self._config, self.layout, lambda: self._calibrate(model))

    def _calibrate(self, model: Decoder) -> tuple[float, ...]:
        tokens = sample_tokens(self._files, self._config)
        run = runner(model, self._ropes, self._dtype)
        return calibrate(self._config, self.layout, tokens, run)

    def _scale(self, values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, device=self._device).view(-1, 1, 1)

    def close(self) -> None:
        self._model = None
        self._pool = None
        self._views = None
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None


def _open_device(device: str) -> torch.device:
    try:
        opened = torch.device(device)
    except RuntimeError as e:
        raise InvalidRequest(f"no such device: {device}") from e
    if opened.type != "cuda":
        return opened
    if not torch.cuda.is_available():
        raise InvalidRequest(f"device {device}: this machine has no usable NVIDIA GPU")
    opened = torch.device("cuda", opened.index or 0)
    if opened.index >= torch.cuda.device_count():
        raise InvalidRequest(f"device {device}: this machine has {torch.cuda.device_count()} GPUs")
    return opened


def _require_fp8(device: torch.device) -> None:
    """Raises `InvalidRequest` for a GPU that has no 8-bit floats."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise InvalidRequest(f"device {device}: FP8 needs a GPU of compute capability 8.9")


def _native_dtype(device: torch.device) -> torch.dtype:
    capable = torch.cpu.get_capabilities()
    native = device.type != "cpu" or any(capable.get(unit) for unit in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if native else torch.float32
