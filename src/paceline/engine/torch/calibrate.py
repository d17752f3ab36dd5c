"""Runs the sample of a calibration on PyTorch."""

import numpy as np
import torch

from paceline.engine.calibration import Run
from paceline.engine.interface import Pages
from paceline.engine.layout import PageLayout
from paceline.engine.step import Step
from paceline.engine.torch.attention import StepAttention
from paceline.engine.torch.decoder import Decoder, Forward
from paceline.engine.torch.planes import Slots
from paceline.engine.torch.pool import PagePool
from paceline.engine.torch.rope import Ropes


def runner(decoder: Decoder, ropes: Ropes, dtype: torch.dtype) -> Run:
    """Runs steps on the device of `decoder`, in a pool of the step's own."""

    def run(step: Step, layout: PageLayout, pages: Pages) -> None:
        device = decoder.embedding.device
        own = torch.zeros(pages.shape, dtype=torch.uint8, device=device)
        slots = [Slots.of(group, device) for group in step.slots]
        tokens, positions, logit_rows = (
            torch.from_numpy(array).to(device) for array in (step.tokens, step.positions, step.logit_rows)
        )
        attention = StepAttention(step, PagePool(own, layout, {}), slots, device, dtype)
        decoder(tokens, Forward(positions, ropes.at(positions), attention), logit_rows)
        np.copyto(pages, own.cpu().numpy())

    return run
