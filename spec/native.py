"""llama-cpp-python, compiled from its source package into a portable wheel once per machine; knows nothing of what is frozen from it.

The wheel holds one copy of libllama, libggml and libggml-base, and one libggml-cpu-* for each instruction-set level; which of those is
used is decided at run time. It is kept in the cache directory under a key of everything that went into it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
import zipfile
from pathlib import Path

from models.cache import default_cache_dir, locked
from spec.environment import BuildError, compiler, digest, install, run, say

VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
FLAGS = (
    "-DGGML_NATIVE=OFF",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_CPU_ALL_VARIANTS=ON",
    "-DLLAVA_BUILD=OFF",
    "-DLLAMA_OPENSSL=OFF",
    # Every library beside libllama, where the loader looks for it.
    "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib",
    "-DCMAKE_INSTALL_LIBDIR=llama_cpp/lib",
    "-DCMAKE_INSTALL_INCLUDEDIR=llama_cpp/include",
    # A wheel turns libx.so -> libx.so.0 into two copies, and two copies of libggml are two registries of backends.
    "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
)
# (file, what it says, what it must say). libllama-common serves llama.cpp's own programs only.
PATCHES = (("CMakeLists.txt", "set(LLAMA_BUILD_COMMON ON ", "set(LLAMA_BUILD_COMMON OFF "),)
# Licences of what is compiled in; the vendored hashes and sgemm are parts of libllama and of the CPU libraries.
LICENCES = (
    "LICENSE.md",
    "vendor/llama.cpp/LICENSE",
    "vendor/llama.cpp/vendor/hash/*/LICENSE*",
    "vendor/llama.cpp/ggml/src/ggml-cpu/llamafile/sgemm.cpp",
)
PROGRESS_SECONDS = 5.0
_STEP = re.compile(r"^\s*\[(\d+)/(\d+)\]")
_LIBRARY = re.compile(r"^llama_cpp/(?:lib|bin)/(?:lib)?([\w.-]+?)\.(?:so|dylib|dll)$")


def key() -> str:
    """What decides the content of the wheel. It is a py3-none wheel: one serves every Python 3 of this platform."""
    patches = [text for patch in PATCHES for text in patch]
    return digest([VERSION, SHA256, *FLAGS, *patches, "py3-none", sysconfig.get_platform(), compiler()])


def wheel() -> Path:
    """The wheel, from the cache or compiled now (about 10 minutes on two cores).

    Raises:
        BuildError: no compiler, no source package, or the compilation failed.
    """
    home = default_cache_dir() / "wheels" / key()
    home.mkdir(parents=True, exist_ok=True)
    if found := _cached(home):
        return found
    with locked(home / "lock", lambda: say("another build is compiling the native wheel; waiting for it")):
        if found := _cached(home):  # another process made it while we waited
            return found
        return _build(home)


def licences() -> Path:
    """The directory with the licence texts of what the wheel was compiled from."""
    return wheel().parent / "licences"


def _cached(home: Path) -> Path | None:
    if (home / "licences").is_dir():
        return next(home.glob("*.whl"), None)
    return None


def _build(home: Path) -> Path:
    started = time.monotonic()
    work = home / "work"
    shutil.rmtree(work, ignore_errors=True)  # what an interrupted build left
    source = fetch_source(work)
    say(f"compiling llama-cpp-python {VERSION} for every CPU level; this is done once and kept in {home}")
    python = install(work / "tools", "native")
    environment = {name: value for name, value in os.environ.items() if name not in ("CMAKE_GENERATOR", "SKBUILD_CMAKE_ARGS")}
    environment["CMAKE_ARGS"] = " ".join(FLAGS)
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    # The builder's own compiler flags could make the libraries unportable, and its directories are nobody's business.
    portable = "" if sys.platform == "win32" else f"-ffile-prefix-map={source}=."
    environment.update(CFLAGS=portable, CXXFLAGS=portable, LDFLAGS="")
    command = [str(python), "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command += ["-w", str(work / "out"), "-C", f"build-dir={work / 'build'}", str(source)]
    compile_loudly(command, environment, home / "build.log", "llama-cpp-python")
    (result,) = (work / "out").glob("*.whl")
    check(result)
    collect_licences(source, home / "licences")
    final = home / result.name
    os.replace(result, final)
    shutil.rmtree(work, ignore_errors=True)
    say(f"compiled in {time.monotonic() - started:.0f} s: {final.name}, {final.stat().st_size / 2**20:.1f} MiB")
    return final


def fetch_source(work: Path) -> Path:
    """Download the source package, check its hash, unpack and patch it under `work`; returns its top directory."""
    work.mkdir(parents=True, exist_ok=True)
    tools = install(work / "tools", "native")
    say(f"fetching the source of llama-cpp-python {VERSION}")
    requirement = work / "source.txt"
    requirement.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{SHA256}\n")
    pip = [tools, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"]
    pip += ["--no-build-isolation", "--require-hashes", "-d", work, "-r", requirement]
    run(pip, what="downloading the source of llama-cpp-python")
    (archive,) = work.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    archive.unlink()
    (source,) = work.glob("llama_cpp_python-*/")
    patch(source)
    return source


def patch(source: Path) -> None:
    """Apply PATCHES.

    Raises:
        BuildError: the text to replace is not there exactly once, so the patch must be thought about again.
    """
    for name, old, new in PATCHES:
        file = source / name
        text = file.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise BuildError(f"{name} of llama-cpp-python {VERSION} no longer says {old!r} once; look at PATCHES in spec/native.py")
        file.write_text(text.replace(old, new), encoding="utf-8")


def collect_licences(source: Path, target: Path) -> None:
    """Copy LICENCES, each under a name that says where it is from; of a source file only the comment at its head."""
    staging = target.with_suffix(".new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for pattern in LICENCES:
        files = sorted(source.glob(pattern))
        if not files:
            raise BuildError(f"llama-cpp-python {VERSION} has no {pattern}; look at LICENCES in spec/native.py")
        for file in files:
            text = file.read_text(encoding="utf-8")
            if file.suffix == ".cpp":
                text = "\n".join(line.removeprefix("//").strip() for line in text.split("\n\n")[0].splitlines()) + "\n"
            name = "-".join(file.relative_to(source).with_suffix("").parts[-3:]).lower()
            (staging / f"{name}.txt").write_text(text, encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


def check(path: Path) -> None:
    """One copy of each library, and only those that the program uses.

    Raises:
        BuildError: the wheel is not what FLAGS and PATCHES are meant to make.
    """
    names = [name for name in zipfile.ZipFile(path).namelist() if re.search(r"\.(so|dylib|dll)(\.|$)", name)]
    stems = sorted(match[1] for name in names if (match := _LIBRARY.match(name)))
    levels = [stem for stem in stems if stem.startswith("ggml-cpu-")]
    wrong = [name for name in names if not _LIBRARY.match(name)] + [stem for stem in stems if "common" in stem or "mtmd" in stem]
    if wrong or len(set(stems)) != len(stems):
        raise BuildError(f"the native wheel holds libraries it should not: {', '.join(wrong) or stems}")
    if missing := {"llama", "ggml", "ggml-base"} - set(stems):
        raise BuildError(f"the native wheel lacks {', '.join(sorted(missing))}")
    if len(levels) < 2:
        raise BuildError(f"the native wheel holds {len(levels)} CPU libraries where one per instruction-set level was expected")


def compile_loudly(command: list[str], environment: dict[str, str], log: Path, what: str) -> None:
    """Run a compilation with a line of progress every few seconds; all it says goes to `log`.

    Raises:
        BuildError: it failed; the end of its output has been shown.
    """
    started = said = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    step, tail = "configuring", [""]
    try:
        with log.open("w", encoding="utf-8") as file:
            while True:
                with contextlib.suppress(queue.Empty):
                    line = lines.get(timeout=PROGRESS_SECONDS)
                    if line is None:
                        break
                    file.write(line)
                    tail = [*tail[-29:], line[:300].rstrip()]
                    if match := _STEP.match(line):
                        step = f"{match[1]} of {match[2]}"
                if time.monotonic() - said >= PROGRESS_SECONDS:
                    said = time.monotonic()
                    say(f"compiling: {step}, {said - started:.0f} s")
    finally:
        if process.poll() is None:
            process.terminate()
        code = process.wait()
    if code:
        print("\n".join(tail), file=sys.stderr)
        raise BuildError(f"compiling {what} failed (exit code {code}); all of its output is in {log}")


if __name__ == "__main__":
    from spec.environment import main_guard

    def main() -> int:
        print(wheel())
        return 0

    raise SystemExit(main_guard(main))
