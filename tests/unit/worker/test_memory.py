import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.engine.layout import PageGroup, PageLayout, Plane
from paceline.model.config import Window
from paceline.worker.memory import plan_pages

PLANE = Plane(0, "kv", 2, 8, "float32")  # 4096 bytes a page


def test_a_pool_is_what_is_wanted_but_no_more_than_a_quarter_of_what_is_free() -> None:
    layout = PageLayout((PageGroup((PLANE,)),))
    assert plan_pages(layout, wanted_bytes=10 * 4096 + 1, free_bytes=1 << 30) == 10
    assert plan_pages(layout, wanted_bytes=10 * 4096, free_bytes=20 * 4096) == 5


def test_an_engine_with_a_memory_of_its_own_bounds_the_pool_too() -> None:
    layout = PageLayout((PageGroup((PLANE,)),))
    assert plan_pages(layout, 10 * 4096, 1 << 30, device_bytes=7 * 4096 + 1) == 7
    assert plan_pages(layout, 10 * 4096, 1 << 30, device_bytes=1 << 30) == 10
    with pytest.raises(InvalidRequest, match="100 for pages on the device"):
        plan_pages(layout, 10 * 4096, 1 << 30, device_bytes=100)


def test_every_page_group_needs_some_pages() -> None:
    layout = PageLayout(
        (PageGroup((PLANE,)), PageGroup((PLANE,), Window(64)), PageGroup((PLANE,), Window(64)))
    )
    assert plan_pages(layout, wanted_bytes=12 * 4096, free_bytes=1 << 30) == 12
    with pytest.raises(InvalidRequest, match="hold 11 pages, at least 12 are needed"):
        plan_pages(layout, wanted_bytes=11 * 4096, free_bytes=1 << 30)
