"""Pages of published models: bytes per token, and the groups that their layers form."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from paceline.engine.layout import PageLayout, plan_layout
from paceline.model.config import Chunk, Span, Window
from paceline.model.config_hf import parse
from paceline.model.fields import Fields

library: Any = transformers  # typed only in part


def layout(config: Any) -> PageLayout:
    """In bfloat16, of a configuration of transformers."""
    fields = Fields(config.to_dict(), Path("config.json"))
    return plan_layout(parse(fields, frozenset()), "bfloat16")


@pytest.mark.parametrize(
    ("config", "everything", "full"),
    [
        (library.Qwen3MoeConfig(num_hidden_layers=48, head_dim=128), 98_304, 98_304),
        (library.Glm4MoeConfig(num_hidden_layers=92, head_dim=128), 376_832, 376_832),
        (library.GptOssConfig(), 73_728, 36_864),
        (library.Llama4TextConfig(), 196_608, 49_152),
    ],
)
def test_bytes_per_token(config: Any, everything: int, full: int) -> None:
    found = layout(config)
    lasting = sum(group.token_bytes for group in found.groups if group.span is None)
    assert (found.token_bytes, lasting) == (everything, full)


@pytest.mark.parametrize(
    ("config", "spans", "layers"),
    [
        (library.Qwen3MoeConfig(), [None], [[*range(24)]]),
        (library.GptOssConfig(), [Window(128), None], [[*range(0, 36, 2)], [*range(1, 36, 2)]]),
        # Three layers of four look back over a chunk: as many groups of them as make all pages equally large.
        (
            library.Llama4TextConfig(num_hidden_layers=8),
            [Chunk(8192), Chunk(8192), Chunk(8192), None],
            [[0, 1], [2, 4], [5, 6], [3, 7]],
        ),
    ],
)
def test_groups(config: Any, spans: list[Span | None], layers: list[list[int]]) -> None:
    found = layout(config)
    assert [group.span for group in found.groups] == spans
    assert [[plane.layer for plane in group.planes] for group in found.groups] == layers
    assert {64 * group.token_bytes for group in found.groups} == {found.page_bytes}


def test_what_a_row_still_needs() -> None:
    window, full = layout(library.GptOssConfig()).groups
    assert [window.first_visible(p) for p in (0, 127, 128, 1000)] == [0, 0, 1, 873]
    assert [window.first_page(p) for p in (190, 191, 192)] == [0, 1, 1]
    assert full.first_page(10**6) == 0
    chunk = layout(library.Llama4TextConfig()).groups[0]
    assert [chunk.first_visible(p) for p in (0, 8191, 8192, 16383)] == [0, 0, 8192, 8192]
    assert [chunk.first_page(p) for p in (8191, 8192)] == [0, 128]
