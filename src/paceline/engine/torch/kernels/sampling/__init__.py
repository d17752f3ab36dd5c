"""From logits to tokens as `paceline.engine.sampling` does it, for many rows at once and on the device of the logits.

Biases and penalties are not here: what a request said before is known to the host, which samples such rows itself.
"""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.sampling import naive
from paceline.engine.torch.kernels.sampling.draws import Draws

__all__ = ["Draws", "sample"]


def sample(logits: Tensor, draws: Draws) -> Tensor:
    """The token of each row, int64 [R]; -1 where the logits hold no distribution: NaN, or infinity.

    logits: float32 [R, vocab]

    The random number is that of `paceline.engine.philox` bit for bit, so that the token is too, but where it falls
    within the rounding of a sum in float64 of the edge between two tokens.
    """
    if kernels.triton_runs(logits.device):
        from paceline.engine.torch.kernels.sampling.triton import sample as on_gpu

        return on_gpu(logits, draws)
    return naive.sample(logits, draws)
