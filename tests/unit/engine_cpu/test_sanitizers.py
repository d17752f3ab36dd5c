"""The tests of each kernel once more, in a process where the address and undefined-behaviour sanitizers watch.

The sanitizers' runtime has to be there before everything else, so Python is started with it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.engine.cpu import levels
from paceline.engine.cpu.build import find_compiler
from tests.unit.engine_cpu import native

HERE = Path(__file__).parent
SANITIZERS = "address,undefined"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="preloads the runtime as Linux does"),
]


def users_of(shim: Path) -> list[Path]:
    """The test files that build `shim`."""
    return [path for path in sorted(HERE.glob("test_*.py")) if f'"{shim.name}"' in path.read_text()]


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """`command` of Python with the sanitizers' runtime and what it needs to know."""
    compiler = find_compiler()
    assert compiler is not None
    found = subprocess.run(
        [*compiler.command, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    runtime = Path(found.stdout.strip())
    if not runtime.is_absolute():
        pytest.skip("the compiler came without its address sanitizer")
    environment = os.environ | {
        native.SANITIZE: SANITIZERS,
        "LD_PRELOAD": str(runtime),
        # Python frees little of what it has as it ends.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # Every array is an allocation of its own, with forbidden bytes on both sides.
        "PYTHONMALLOC": "malloc",
    }
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=HERE.parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_every_shim_has_tests() -> None:
    for shim in native.SHIMS.glob("*.cpp"):
        assert users_of(shim), shim.name


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shim", sorted(native.SHIMS.glob("*.cpp")), ids=lambda shim: shim.stem)
def test_the_sanitizers_find_nothing(shim: Path) -> None:
    files = [str(path) for path in users_of(shim)]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-o", "timeout=1000", "-k", "not sanitizer"]
    ran = run(["-m", "pytest", *options, *files])
    assert ran.returncode == 0, ran.stdout[-6000:]


@pytest.mark.parametrize(
    ("expression", "message"),
    [("p[n]", "heap-buffer-overflow"), ("p[0] << n", "shift exponent 40 is too large")],
)
def test_what_is_wrong_is_found(expression: str, message: str, tmp_path: Path) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text(f'extern "C" int wrong(const int *p, int n) {{ return {expression}; }}\n')
    code = (
        "import numpy as np; from pathlib import Path; from tests.unit.engine_cpu.native import build;"
        f"wrong = build(Path({str(source)!r}), {levels.supported()[0]!r}).wrong;"
        "wrong(np.zeros(40, np.int32).ctypes, 40)"
    )
    ran = run(["-c", code])
    assert ran.returncode != 0
    assert message in ran.stdout
