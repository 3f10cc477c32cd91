"""Build llama.cpp's own programs (llama-server, llama-bench, llama-batched-bench) to measure against; no part of the product.

They come from the source archive of the native wheel and are compiled for the instruction sets of the CPU library that the product
uses on this machine, so that a comparison compares the servers. Kept in the cache directory.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

from models.cache import default_cache_dir, locked
from spec import native
from spec.environment import BuildError, compiler, digest, enter, install_wheel, main_guard, say, venv_directory

PROGRAMS = ("llama-server", "llama-bench", "llama-batched-bench")
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)


def programs(variant: str) -> Path:
    """The directory with PROGRAMS for one CPU variant ("zen4"), built now if it is not in the cache (about 13 minutes on two cores).

    Raises:
        BuildError: there is no such variant, or the compilation failed.
    """
    home = default_cache_dir() / "peer" / digest([native.VERSION, native.SHA256, variant, *FLAGS, compiler()])
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock", lambda: say("another build is compiling the peers; waiting for it")):
        if not (home / "bin").is_dir():
            _build(home, variant)
    return home / "bin"


def _build(home: Path, variant: str) -> None:
    work = home / "work"
    shutil.rmtree(work, ignore_errors=True)
    source = native.fetch_source(work) / "vendor" / "llama.cpp"
    features = instruction_sets((source / "ggml" / "src" / "CMakeLists.txt").read_text(), variant)
    say(f"compiling {', '.join(PROGRAMS)} for {variant}: {' '.join(name for name, on in features.items() if on)}")
    tools = work / "tools" / "bin"
    flags = [*FLAGS, *(f"-DGGML_{name}={'ON' if on else 'OFF'}" for name, on in features.items())]
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "CFLAGS": "", "CXXFLAGS": "", "LDFLAGS": ""}
    configure = [str(tools / "cmake"), "-G", "Ninja", "-S", str(source), "-B", str(work / "build"), *flags]
    native.compile_loudly(configure, environment, home / "configure.log", "llama.cpp's programs")
    build = [str(tools / "cmake"), "--build", str(work / "build"), "--parallel", str(os.cpu_count() or 1), "--target", *PROGRAMS]
    native.compile_loudly(build, environment, home / "build.log", "llama.cpp's programs")
    done = work / "done"
    done.mkdir()
    for name in PROGRAMS:
        shutil.copy2(work / "build" / "bin" / name, done / name)
    done.rename(home / "bin")
    shutil.rmtree(work, ignore_errors=True)


def instruction_sets(cmake: str, variant: str) -> dict[str, bool]:
    """Which features of ggml the CPU library `variant` is compiled with, out of ggml's own list of variants.

    Raises:
        BuildError: `cmake` (ggml/src/CMakeLists.txt) has no such variant.
    """
    variants = {name: features.split() for name, features in re.findall(r"ggml_add_cpu_backend_variant\(([\w.]+)([^)]*)\)", cmake)}
    if variant not in variants:
        raise BuildError(f"ggml has no CPU variant {variant}; it has {', '.join(sorted(variants))}")
    known = sorted({feature for features in variants.values() for feature in features if re.match(r"SSE|AVX|BMI|FMA|F16C|AMX", feature)})
    return {feature: feature in variants[variant] for feature in known}


def chosen_variant() -> str:
    """The CPU library that the product uses here ("zen4")."""
    from server.llama.cpu import choose_cpu  # needs the installed wheel

    return choose_cpu(default_cache_dir(), None).name


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make peer", description="Build llama.cpp's programs with the CPU flags that the product uses here."
    )
    parser.add_argument("--variant", help="CPU variant of ggml (default: the one the product chooses)")
    options = parser.parse_args()
    enter("build")
    install_wheel(venv_directory(), native.wheel())
    directory = programs(options.variant or chosen_variant())
    for name in PROGRAMS:
        print(directory / name)
    return 0


if __name__ == "__main__":
    sys.exit(main_guard(main))
