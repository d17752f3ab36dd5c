"""The native step is compiled once, found again, and never loaded damaged; its structures are those of abi.h."""

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.engine.cpu import build, levels
from paceline.engine.cpu import library as mirror
from tests.unit.engine_cpu import native

ADD = 'extern "C" int add(int a, int b) { return a + b; }\n'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "add.cpp"
    path.write_text(ADD)
    return path


ONCE = 2
"""Calls that a library of one source takes: it is compiled, then linked."""


@pytest.fixture
def compiler_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often $CXX was asked to compile."""
    real = build.find_compiler()
    assert real is not None
    log = tmp_path / "calls"
    log.touch()
    script = tmp_path / "counting-c++"
    script.write_text(
        f'#!/bin/sh\ncase "$1" in --version) ;; *) echo >> {log} ;; esac\nexec {real.command[0]} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return lambda: len(log.read_text())


def add(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).add(2, 3))


# Levels


def test_flags_count_that_all_cores_have() -> None:
    assert levels.features_of("flags\t\t: fma avx2 f16c\nmodel name: x\nflags\t\t: avx2 f16c\n") == {
        "avx2",
        "f16c",
    }
    assert levels.features_of("Features : asimd\n") == frozenset()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("", ["plain"]),
        ("avx2 fma", ["plain"]),
        ("avx2 fma f16c", ["avx2", "plain"]),
        ("avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni", ["avx2", "plain"]),
        (
            "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16",
            ["avx512", "avx2", "plain"],
        ),
    ],
)
def test_a_level_needs_all_its_features(
    features: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "_cpu_features", lambda: frozenset(features.split()))
    assert list(levels.supported()) == expected
    assert levels.detect() == expected[0]
    monkeypatch.setenv("PACELINE_CPU_LEVEL", "plain")
    assert levels.detect() == "plain"


@pytest.mark.parametrize(
    ("forced", "message"), [("avx512", "this CPU runs only plain"), ("sse", "expected one of")]
)
def test_a_level_that_cannot_run_is_refused(
    forced: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "_cpu_features", frozenset)
    monkeypatch.setenv("PACELINE_CPU_LEVEL", forced)
    with pytest.raises(InvalidRequest, match=f"PACELINE_CPU_LEVEL={forced}: {message}"):
        levels.detect()


# Building


def test_a_library_is_compiled_once(source: Path, tmp_path: Path, compiler_calls: Callable[[], int]) -> None:
    cache = tmp_path / "cache"
    first = build.library("plain", source, cache=cache)
    assert add(first) == 5
    assert build.library("plain", source, cache=cache) == first
    assert compiler_calls() == ONCE
    assert [path.name for path in cache.iterdir()] == [first.name]


def test_another_source_flag_or_level_is_another_library(source: Path, tmp_path: Path) -> None:
    def built(*flags: str) -> Path:
        return build.library("plain", source, flags, tmp_path / "cache")

    found = {built(), built("-DX=1")}
    source.write_text(ADD.replace("a + b", "a * b"))
    found.add(built())
    assert len(found) == 3
    assert add(built()) == 6


def test_a_changed_header_is_another_library(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = tmp_path / "native"
    headers.mkdir()
    monkeypatch.setattr(build, "NATIVE", headers)
    source.write_text('#include "sum.h"\n')
    for sign, expected in (("+", 5), ("-", -1)):
        (headers / "sum.h").write_text(ADD.replace("+", sign))
        assert add(build.library("plain", source, cache=tmp_path / "cache")) == expected


@pytest.mark.parametrize(
    "damage", [lambda data: data[:5000], lambda data: data[:-1] + b"!", lambda data: b""]
)
def test_a_damaged_library_is_compiled_again(
    damage: Callable[[bytes], bytes], source: Path, tmp_path: Path, compiler_calls: Callable[[], int]
) -> None:
    path = build.library("plain", source, cache=tmp_path)
    whole = path.read_bytes()
    # A new file: one that a process has loaded must not change under it.
    path.unlink()
    path.write_bytes(damage(whole))
    again = build.library("plain", source, cache=tmp_path)
    assert add(again) == 5
    assert compiler_calls() == 2 * ONCE
    assert len(list(tmp_path.glob("*.so"))) == 1


def test_processes_that_build_at_once_do_not_meet(source: Path, tmp_path: Path) -> None:
    code = (
        "import ctypes, pathlib, sys; from paceline.engine.cpu import build;"
        "path = build.library('plain', pathlib.Path(sys.argv[1]), cache=pathlib.Path(sys.argv[2]));"
        "sys.exit(ctypes.CDLL(str(path)).add(2, 3) != 5)"
    )
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", code, str(source), str(cache)]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert {path.suffix for path in cache.iterdir()} == {".so"}


def test_without_a_compiler_a_library_that_one_left_will_do(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = build.library("plain", source, cache=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build.find_compiler() is None
    assert build.library("plain", source, cache=tmp_path) == left
    source.write_text(ADD + "// other")
    with pytest.raises(build.NoCompiler, match=r"no C\+\+ compiler"):
        build.library("plain", source, cache=tmp_path)


@pytest.mark.parametrize(
    ("platform", "tool", "command"),
    [
        ("linux", "apt-get", r"apt-get install g\+\+"),
        ("linux", "dnf", r"dnf install gcc-c\+\+"),
        ("darwin", "brew", "xcode-select --install"),
    ],
)
def test_what_to_install_is_said(
    platform: str, tool: str, command: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / tool).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(build.NoCompiler, match=command):
        build.library("plain", source, cache=tmp_path)


def test_a_chosen_compiler_that_does_not_run_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(InvalidRequest, match="CXX=no-such-compiler -O1 cannot be run"):
        build.library("plain", source)


def test_what_the_compiler_says_is_shown(source: Path, tmp_path: Path) -> None:
    source.write_text("#warning first\n" * 40 + ADD + "int broken = nothing_of_this_name;\n")
    with pytest.raises(InvalidRequest, match="nothing_of_this_name"):
        build.library("plain", source, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match=r"file/cache cannot hold .* XDG_CACHE_HOME"):
        build.library("plain", source, cache=tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["sse"], 2, "no such level: sse"),
        (["plain"], 1, "no C++ compiler"),
        ([], 1, "PACELINE_CPU_LEVEL=sse"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PACELINE_CPU_LEVEL", "sse")
    command = [sys.executable, "-m", "paceline.engine.cpu.build", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


# The interface


def test_the_step_is_a_library_of_this_interface() -> None:
    mirror.load(build.library(levels.detect()))


def test_another_library_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no library of the cpu engine: .*pl_open"):
        mirror.load(build.library("plain", source, cache=tmp_path))


def declared(kind: str) -> dict[str, list[str]]:
    """Members of every struct or enum of abi.h, in order."""
    text = re.sub(r"//.*", "", (build.NATIVE / "abi.h").read_text())
    found = {}
    for name, body in re.findall(kind + r" (\w+)[^{};]*\{(.*?)\};", text, re.DOTALL):
        members = re.split(r"[;,]", body)
        found[name] = [re.findall(r"\w+", m.partition("=")[0])[-1] for m in members if m.strip()]
    return found


def test_structures_are_those_of_the_header(tmp_path: Path) -> None:
    structures = declared("struct")
    assert structures.keys() == {"PlMatrix", "PlLayer", "PlModel", "PlStep", "PlDraw"}
    lines = []
    for name, members in structures.items():
        structure = getattr(mirror, name)
        assert [field[0] for field in structure._fields_] == members
        lines += [f"sizeof({name})"]
        lines += [f"offsetof({name}, {member}), sizeof({name}::{member})" for member in members]
    lines_of_c = ", ".join(lines)
    source = tmp_path / "abi.cpp"
    source.write_text(
        '#include "abi.h"\n#include <cstddef>\n'
        f'extern "C" {{ extern const unsigned long figures[] = {{{lines_of_c}}}; }}\n'
    )
    ours = []
    for name, members in structures.items():
        structure = getattr(mirror, name)
        ours.append(ctypes.sizeof(structure))
        for member in members:
            ours += [getattr(structure, member).offset, getattr(structure, member).size]
    figures = (ctypes.c_ulong * len(ours)).in_dll(native.build(source, "plain"), "figures")
    assert list(figures) == ours


def test_numbers_of_formats_are_those_of_the_header() -> None:
    enums = declared("enum")
    assert enums.keys() == {"PlFormat", "PlKv"}
    assert ["PL_" + m for m in mirror.PlFormat.__members__] == enums["PlFormat"]
    assert ["PL_KV_" + m for m in mirror.PlKv.__members__] == enums["PlKv"]
    text = (build.NATIVE / "abi.h").read_text()
    values = {name: int(value) for name, value in re.findall(r"(PL_\w+) = (\d+)", text)}
    assert values == {f"PL_{m.name}": m.value for m in mirror.PlFormat} | {
        f"PL_KV_{m.name}": m.value for m in mirror.PlKv
    }
