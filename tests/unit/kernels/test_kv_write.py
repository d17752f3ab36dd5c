from types import ModuleType

import pytest
import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.torch.kernels import kv_write as dispatch
from paceline.engine.torch.kernels.kv_write import naive, triton
from paceline.engine.torch.kernels.planes import LatentView, PlaneView

E4M3 = torch.float8_e4m3fn
PAGES, HEADS, DIM = 4, 3, 24
SLOTS = torch.tensor([70, 0, 255, 63, 128])

both = pytest.mark.parametrize("version", [naive, triton], ids=["naive", "triton"])


def make_plane(dtype: torch.dtype, *, scale: float = 1.0, per_token: bool = False) -> PlaneView:
    """Full of zeros, among other planes of a pool."""
    pool = torch.zeros(PAGES, HEADS + 2, PAGE_TOKENS, DIM).to(dtype)
    scales = torch.zeros(PAGES, HEADS, PAGE_TOKENS) if per_token else None
    return PlaneView(pool[:, 1:-1], scale, scales)


def rows_of(plane: PlaneView, slots: Tensor) -> Tensor:
    """float32 [T, heads, dim], dequantised"""
    pages, offsets = slots // PAGE_TOKENS, slots % PAGE_TOKENS
    values = plane.values.float()[pages, :, offsets] * plane.scale
    return values if plane.scales is None else values * plane.scales[pages, :, offsets][..., None]


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(len(SLOTS), HEADS + 1, DIM)[:, 1:]


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_lie_in_their_slots_and_nowhere_else(version: ModuleType, dtype: torch.dtype, x: Tensor) -> None:
    plane = make_plane(dtype)
    version.kv_write(x, plane, SLOTS)
    assert torch.equal(rows_of(plane, SLOTS), x.to(dtype).float())
    assert plane.values.count_nonzero() == x.to(dtype).count_nonzero()


@both
def test_e4m3_is_rounded_to_nearest_even_and_clamped(version: ModuleType) -> None:
    plane = make_plane(E4M3, scale=0.5)
    x = torch.zeros(1, HEADS, DIM)
    x[0, 1, :8] = torch.tensor([1e4, -1e4, 224.0, 0.5, 0.53125, 0.59375, -0.53126, 2.0**-11])
    version.kv_write(x, plane, torch.tensor([65]))
    stored = plane.values.float()[1, 1, 1, :8]
    # 0.53125 / 0.5 = 1.0625 lies between 1 and 1.125, 1.1875 between 1.125 and 1.25; 2^-10 between 0 and 2^-9.
    assert stored.tolist() == [448.0, -448.0, 448.0, 1.0, 1.0, 1.25, -1.125, 0.0]


@both
@pytest.mark.parametrize("per_token", [False, True])
def test_nan_is_stored_as_what_it_is(version: ModuleType, per_token: bool, x: Tensor) -> None:
    """A row that went wrong must not come back as numbers that look right."""
    plane = make_plane(E4M3, per_token=per_token)
    x[0, 1, 5] = torch.nan
    version.kv_write(x, plane, SLOTS)
    assert rows_of(plane, SLOTS)[0, 1, 5].isnan()
    assert not rows_of(plane, SLOTS)[1:].isnan().any()


@both
def test_a_scale_for_each_token_and_head_lets_the_largest_value_through(
    version: ModuleType, x: Tensor
) -> None:
    plane = make_plane(E4M3, per_token=True)
    x = x * torch.logspace(-3, 3, HEADS)[:, None]
    x[0, 0] = 0
    version.kv_write(x, plane, SLOTS)
    assert plane.scales is not None
    scales = plane.scales[SLOTS // PAGE_TOKENS, :, SLOTS % PAGE_TOKENS]
    assert torch.equal(scales[1:], x[1:].abs().amax(dim=-1) / 448)
    assert plane.scales.count_nonzero() == scales.numel()
    back = rows_of(plane, SLOTS)
    assert torch.equal(back[0, 0], torch.zeros(DIM))
    assert ((back - x).abs() <= x.abs() / 16 + scales[..., None] * 2.0**-10).all()


@pytest.mark.parametrize(("scale", "per_token"), [(0.037, False), (1.0, True)])
def test_both_versions_store_the_same_bytes(scale: float, per_token: bool, x: Tensor) -> None:
    planes = [make_plane(E4M3, scale=scale, per_token=per_token) for _ in range(2)]
    naive.kv_write(x * 3, planes[0], SLOTS)
    triton.kv_write(x * 3, planes[1], SLOTS)
    assert torch.equal(bytes_of(planes[0].values), bytes_of(planes[1].values))
    if planes[0].scales is not None and planes[1].scales is not None:
        assert torch.equal(planes[0].scales, planes[1].scales)


@both
@pytest.mark.parametrize("per_token", [False, True])
def test_converted_pages_equal_rows_that_were_written(version: ModuleType, per_token: bool) -> None:
    source, source_pages, target_pages = (
        make_plane(torch.bfloat16),
        torch.tensor([3, 1]),
        torch.tensor([0, 3]),
    )
    source.values.copy_(torch.randn(source.values.shape))
    target, expected = (
        make_plane(E4M3, scale=1 if per_token else 0.01, per_token=per_token) for _ in range(2)
    )
    version.convert_pages(source, source_pages, target, target_pages)
    rows = source.values[source_pages].transpose(1, 2).flatten(0, 1)
    slots = (target_pages[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS)).flatten()
    naive.kv_write(rows, expected, slots)
    assert torch.equal(bytes_of(target.values), bytes_of(expected.values))
    if target.scales is not None and expected.scales is not None:
        assert torch.equal(target.scales, expected.scales)


@pytest.fixture(params=[naive, triton], ids=["naive", "triton"])
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that the functions of the package use, although the tensors lie on the CPU."""
    monkeypatch.setattr(dispatch, "naive", request.param)


@pytest.mark.usefixtures("chosen")
def test_a_latent_row_of_656_bytes() -> None:
    content, rope = torch.randn(2, 512) * torch.logspace(-2, 2, 512), torch.randn(2, 64)
    memory = torch.zeros(3, PAGE_TOKENS, 656, dtype=torch.uint8)
    dispatch.latent_write(content, rope, LatentView.rows(memory), torch.tensor([64, 191]))
    assert memory.any(2).nonzero().tolist() == [[1, 0], [2, 63]]
    for row, expected, rotary in zip((memory[1, 0], memory[2, 63]), content, rope, strict=True):
        scales = row[512:528].view(torch.float32)
        assert torch.equal(scales, expected.view(4, 128).abs().amax(1) / 448)
        assert torch.equal(row[528:].view(torch.bfloat16), rotary.bfloat16())
        quantised = (expected.view(4, 128) / scales[:, None]).to(E4M3)
        assert torch.equal(row[:512], quantised.view(torch.uint8).flatten())


@pytest.mark.usefixtures("chosen")
def test_latent_pages_become_rows_of_656_bytes() -> None:
    plane = torch.randn(3, PAGE_TOKENS, 576).bfloat16()
    converted, written = torch.zeros(2, 3, PAGE_TOKENS, 656, dtype=torch.uint8)
    pages, targets = torch.tensor([2, 0]), torch.tensor([1, 2])
    dispatch.convert_latent_pages(LatentView.joined(plane, 512), pages, LatentView.rows(converted), targets)
    slots = torch.arange(PAGE_TOKENS, 3 * PAGE_TOKENS)
    rows = plane[pages].flatten(0, 1)
    dispatch.latent_write(rows[:, :512], rows[:, 512:], LatentView.rows(written), slots)
    assert torch.equal(converted, written)
    assert written[1:].any(2).all()


@pytest.mark.usefixtures("chosen")
def test_a_latent_of_one_dtype_and_scale() -> None:
    content, rope = torch.randn(2, 512), torch.randn(2, 64)
    plane = torch.zeros(2, PAGE_TOKENS, 576).to(E4M3)
    dispatch.latent_write(content, rope, LatentView.joined(plane, 512, 0.5), torch.tensor([3, 64]))
    expected = (torch.cat((content, rope), 1) / 0.5).to(E4M3).float()
    assert torch.equal(plane.float()[[0, 1], [3, 0]], expected)
