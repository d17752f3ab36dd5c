"""What a service does not import, although it is installed. Each in a fresh interpreter."""

import subprocess
import sys

import pytest

FOUND = "sorted({m.partition('.')[0] for m in sys.modules} & {'aiohttp', 'rich', 'tokenizers', 'torch'})"


def imported(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*{FOUND})"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("role", "used"),
    [
        ("prefill", "tokenizers"),  # for grammars, which are about tokens
        ("decode", "tokenizers"),
        ("kvstore", ""),
        ("drafter", ""),
    ],
)
def test_workers_leave_out_what_they_do_not_use(role: str, used: str) -> None:
    assert imported(f"import paceline.{role}.__main__") == used


def test_the_gateway_imports_what_it_serves_with() -> None:
    assert imported("import paceline.gateway.__main__, aiohttp.web") == "aiohttp tokenizers"


def test_what_is_left_out_can_be_imported_afterwards() -> None:
    assert imported("import paceline.runtime.lean, aiohttp, rich.console") == "aiohttp rich"
    assert imported("import aiohttp, rich, paceline.runtime.lean") == "aiohttp rich"
