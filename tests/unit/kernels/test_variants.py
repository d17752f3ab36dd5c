"""A kernel that is compiled anew for the size of a step, or a launcher that waits for a value, delays every request."""

import json

import pytest

from tests.unit.kernels.process import run_compiling


@pytest.mark.timeout(120)
def test_steps_of_all_sizes_ask_for_few_variants_and_for_no_value() -> None:
    found = json.loads(run_compiling("tests.unit.kernels.variants"))
    assert found == {
        # A tile for up to 16, 32, 64 and 128 rows, whatever the matrix; experts of e4m3 have none for 128.
        "expert_blocks _align": 4,
        "experts _down": 4 + 3,
        "experts _gate_up": 4 + 3,
        "fp8_linear _linear": 4,
        "w4a16 _linear": 4,
        # One group of columns is a constant.
        "fp8_linear _quantise": 2,
        # The context in parts or whole, for one row of each sequence or many; of the latter 16 to 128 lines.
        "mla_decode _attend": 4,
        "paged_attention _attend": 2 + 6,
        # Heads of 128 and latents of 512.
        "split_context _combine": 2,
        # With a residual or without.
        "rms_norm _rms_norm": 2,
        "kv_write _write": 1,
        "page_tags _changed": 1,
        "rope _rope": 1,
        "sampling _sample": 1,
    }
