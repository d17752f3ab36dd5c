"""Threads that a worker takes by itself."""

import os
from pathlib import Path

import pytest

from paceline.worker.cores import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def cores(tmp_path: Path, own: str, **quotas: str) -> int:
    """With `quotas` by path of the cgroup, `_` for `/`; the empty path is the root."""
    (tmp_path / "own").write_text(own)
    for path, text in quotas.items():
        group = tmp_path / "cgroup" / path.replace("_", "/").strip("/")
        group.mkdir(parents=True, exist_ok=True)
        (group / "cpu.max").write_text(text)
    return usable_cores(tmp_path / "own", tmp_path / "cgroup")


def test_without_a_quota_all_that_the_process_may_run_on(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/a\n", a="max 100000\n") == 8
    assert usable_cores(tmp_path / "none", tmp_path) == 8


def test_a_quota_is_rounded_up(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/a\n", a="250000 100000\n") == 3
    assert cores(tmp_path, "0::/a\n", a="10000 100000\n") == 1
    assert cores(tmp_path, "0::/a\n", a="1600000 100000\n") == 8


def test_the_tightest_quota_above_counts(tmp_path: Path) -> None:
    assert cores(tmp_path, "1:name=systemd:/x\n0::/a/b\n", a_b="400000 100000\n", a="200000 100000\n") == 2


def test_a_container_is_the_root_of_what_it_sees(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/../outside\n", _="150000 100000\n") == 2
