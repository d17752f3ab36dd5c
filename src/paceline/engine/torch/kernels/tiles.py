"""How the matrix kernels cut their work into programs."""

import triton
import triton.language as tl

# Two for each multiprocessor of an H100 or H200.
_PROGRAMS = 264
_ALL = 1 << 30


@triton.jit
def tile_of(program, row_blocks, columns, BLOCK: tl.constexpr, GROUP: tl.constexpr = 8):
    """The (row block, column block) of a program.

    Programs that run at the same time share up to GROUP row blocks and few column blocks, so that what they load is
    still in the L2 cache when the next one wants it.
    """
    width = GROUP * tl.cdiv(columns, BLOCK)
    first = program // width * GROUP
    height = tl.minimum(row_blocks - first, GROUP)
    return first + program % width % height, program % width // height


def token_block(tokens: int) -> int:
    """How many rows of activations a program takes: as few as hold them all, up to 128."""
    return min(128, max(16, 1 << (tokens - 1).bit_length()))


def shared_by(block: int, size: int) -> int:
    """How many of `size` rows or groups share a scale, as kernels are told: one number wherever all of them do, so that
    matrices of different sizes need not be compiled for apart."""
    return block if block < size else _ALL


def splits(tiles: int, steps: int) -> int:
    """Into how many parts the inner dimension of `steps` steps is cut, so that `tiles` tiles occupy the whole GPU."""
    return max(1, min(_PROGRAMS // tiles, steps // 4))
