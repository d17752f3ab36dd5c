"""`Engine` of one native call per step."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from paceline.contracts.messages import Sampling
from paceline.engine.calibration import calibrate, sample_tokens
from paceline.engine.cpu import build, levels, library
from paceline.engine.cpu.native_step import NativeStep
from paceline.engine.cpu.support import check_model, check_precision
from paceline.engine.cpu.weights import PackedModel, Weights, pack_model
from paceline.engine.interface import Outcome, Pages, Progress
from paceline.engine.layout import KvDtype, PageLayout, plan_layout
from paceline.engine.masks import Masks
from paceline.engine.profile import KvProfile
from paceline.engine.scales import cache_scales
from paceline.engine.step import Float32, Step
from paceline.model.config import read_config
from paceline.model.files import ModelFiles
from paceline.model.fingerprint import fingerprint_of
from paceline.model.weights import Stored, open_weights


class CpuEngine:
    """Implements `Engine` for dense models with grouped-query attention.

    Where weights are integers, activations are rounded to 8 bits in groups of 32. A row's result depends neither on
    what else is in its step, nor on threads, nor on how its prompt was cut: a request has one answer in every batch.
    """

    name = "cpu"
    in_place = True
    page_memory: int | None = None

    def __init__(self, files: ModelFiles, *, weights: Weights, kv_dtype: KvDtype, threads: int) -> None:
        """`weights` is what they are multiplied as: "auto" as the file has them.

        Raises `InvalidRequest` for a model that this engine does not run.
        """
        self._files = files
        self._config = read_config(files)
        self._weights = weights
        self._threads = threads
        self._model: PackedModel | None = None
        self._native: NativeStep | None = None
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
        return fingerprint_of(self._config, self._open())

    def _open(self) -> Mapping[str, Stored]:
        return open_weights(self._files, self._config)

    @property
    def weight_bytes(self) -> int:
        """What weights take in memory, from `load` on."""
        return self._packed.nbytes

    def load(self, progress: Progress) -> None:
        # Mapped files count as memory of the process as long as they are open.
        stored = self._open()
        self.fingerprint = fingerprint_of(self._config, stored)
        check_model(self._config, stored, self._files.path)
        check_precision(stored, self._weights, self._files.path)
        self._library = library.load(build.library(levels.detect()))
        self._model = pack_model(
            self._config,
            stored,
            self._weights,
            self._library,
            threads=self._threads,
            progress=progress,
            sample=self._sample_tokens,
        )
        scales = cache_scales(self._files, self._config, self.layout, self._calibrate)
        self.profile = KvProfile(self.fingerprint, self.kv_dtype, self.layout, scales)

    def bind(self, pages: Pages) -> None:
        self._native = self._over(pages, self.layout, self.kv_dtype, self.profile.scales)

    def execute(self, step: Step) -> Float32:
        return self._running.logits(step)

    def sample(self, step: Step, samplings: Sequence[Sampling | None], masks: Masks | None = None) -> Outcome:
        return self._running.draw(step, samplings, masks)

    def export_pages(self, pages: Sequence[int]) -> None: ...

    def import_pages(self, pages: Sequence[int]) -> None: ...

    def close(self) -> None:
        if self._native is not None:
            self._native.close()
        self._native = self._model = None

    @property
    def _running(self) -> NativeStep:
        if self._native is None:
            raise RuntimeError("execute before load and bind")
        return self._native

    def _over(
        self, pages: Pages, layout: PageLayout, kv_dtype: KvDtype, scales: Sequence[float]
    ) -> NativeStep:
        model = self._packed.model
        return NativeStep(self._library, model, pages, layout, kv_dtype, scales, self._threads)

    @property
    def _packed(self) -> PackedModel:
        if self._model is None:
            raise RuntimeError("bind before load")
        return self._model

    def _calibrate(self) -> tuple[float, ...]:
        def run(step: Step, layout: PageLayout, pages: Pages) -> None:
            native = self._over(pages, layout, "float32", ())
            native.logits(step)
            native.close()

        return calibrate(self._config, self.layout, self._sample_tokens(), run)

    def _sample_tokens(self) -> list[int]:
        return sample_tokens(self._files, self._config)
