"""The reference engine: every model, on whatever device PyTorch runs on."""

import os

# PyTorch's threads meet after every operator and spin for milliseconds until the last is there. Where workers share
# cores, one that waits for a core is thus held up by others that spin on it: two threads on two busy cores fell from 39
# to 4 tokens/s at batch 1. Spins of some 40 us still cover the gaps between operators (37 tokens/s when the cores are
# free) and bound the loss (15 when they are not). libgomp reads this once, as torch is imported below this package.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
