"""llama.cpp, compiled for this machine from the source that the sdist of llama-cpp-python carries."""

import os
import sys
import tarfile
from pathlib import Path

from bench.peers.environment import PeerUnavailable, building, directory, run, say
from paceline.model.files import locate
from paceline.model.fingerprint import fingerprint

VERSION = "0.3.36"
"""Of llama-cpp-python, whose sdist holds llama.cpp at commit 0c1e570."""

_TARGETS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-server")
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    # Neither is needed, and both look for what may be absent: a library, a download.
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
}


def binaries() -> Path:
    """The directory of `_TARGETS`; it takes 18 minutes of CPU time to fill at first."""
    home = directory(f"llama.cpp-{VERSION}")
    with building(home) as missing:
        if missing:
            _compile(_source(home), home)
    return home / "build" / "bin"


def requantized(model: Path) -> Path:
    """`model` in Q4_0, which llama.cpp repacks for its fastest kernels; made from the file's own rounded values."""
    files = locate(str(model))
    home = directory(f"llama.cpp-{VERSION}-{files.name}-{fingerprint(files).hex()[:12]}")
    output = home / f"{files.name}.Q4_0.gguf"
    with building(home) as missing:
        if missing:
            program = str(binaries() / "llama-quantize")
            command = [program, "--allow-requantize", str(model), str(output), "Q4_0"]
            run(f"llama.cpp: requantizing {model.name} as Q4_0", command, home / "quantize.log")
    return output


def _source(home: Path) -> Path:
    name = f"llama_cpp_python-{VERSION}"
    source = home / name / "vendor" / "llama.cpp"
    if (source / "CMakeLists.txt").exists():
        return source
    # pip looks at a source's metadata by its build backend, which it fetches as a wheel beside it.
    download = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(home)),
        *("--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}"),
    ]
    run(f"llama.cpp: fetching the source in llama-cpp-python {VERSION}", download, home / "download.log")
    say("llama.cpp: unpacking")
    with tarfile.open(home / f"{name}.tar.gz") as archive:
        archive.extractall(home, filter="data")
    if not (source / "CMakeLists.txt").exists():
        raise PeerUnavailable(f"the sdist of llama-cpp-python {VERSION} holds no vendor/llama.cpp")
    return source


def _compile(source: Path, home: Path) -> None:
    options = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
    build = home / "build"
    run("llama.cpp: configuring", ["cmake", "-S", source, "-B", build, *options], home / "configure.log")
    jobs = str(len(os.sched_getaffinity(0)))
    run(
        f"llama.cpp: compiling, about 18 minutes of CPU time on {jobs} cores",
        ["nice", "-n", "19", "cmake", "--build", build, "--parallel", jobs, "--target", *_TARGETS],
        home / "compile.log",
    )
