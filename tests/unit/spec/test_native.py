"""The native wheel: made once for what went into it, refused when it is not what was meant, never made twice at the same time."""

from __future__ import annotations

import shutil
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from models.cache import default_cache_dir
from spec import native
from spec.environment import BuildError

GOOD = ["libllama.so", "libggml.so", "libggml-base.so", "libggml-cpu-x64.so", "libggml-cpu-haswell.so"]


def _wheel(path: Path, libraries: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in libraries:
            file.writestr(f"llama_cpp/lib/{name}", b"\x7fELF")
        file.writestr("llama_cpp/llama_cpp.py", b"")
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the wheel in an empty cache."""
    monkeypatch.setenv("CAPSULE_CACHE_DIR", str(tmp_path))
    return default_cache_dir() / "wheels" / native.key()


def test_a_wheel_with_one_copy_of_each_library_is_good(tmp_path: Path) -> None:
    native.check(_wheel(tmp_path / "good.whl", GOOD))


@pytest.mark.parametrize(
    ("libraries", "words"),
    [
        ([*GOOD, "libggml.so.0"], "libggml.so.0"),
        ([*GOOD, "libllama-common.so"], "llama-common"),
        (GOOD[1:], "lacks llama"),
        (GOOD[:4], "1 CPU libraries"),
    ],
)
def test_another_wheel_is_refused(tmp_path: Path, libraries: list[str], words: str) -> None:
    with pytest.raises(BuildError, match=words):
        native.check(_wheel(tmp_path / "bad.whl", libraries))


def test_the_installed_wheel_is_good() -> None:
    native.check(native.wheel())


def test_the_key_changes_with_everything_that_goes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {native.key()}
    for name, value in [("FLAGS", (*native.FLAGS, "-DGGML_VULKAN=ON")), ("PATCHES", ()), ("VERSION", "0.0.1"), ("SHA256", "0" * 64)]:
        with monkeypatch.context() as patch:
            patch.setattr(native, name, value)
            keys.add(native.key())
    monkeypatch.setattr(native, "compiler", lambda: "another compiler 1.0")
    keys.add(native.key())
    assert len(keys) == 6


def test_a_patch_that_no_longer_fits_stops_the_build(tmp_path: Path) -> None:
    file = tmp_path / "CMakeLists.txt"
    file.write_text('set(LLAMA_BUILD_COMMON ON CACHE BOOL "" FORCE)\n')
    native.patch(tmp_path)
    assert "LLAMA_BUILD_COMMON OFF CACHE" in file.read_text()
    with pytest.raises(BuildError, match="PATCHES"):
        native.patch(tmp_path)


def test_builders_wait_for_each_other_and_build_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []

    def build(home: Path) -> Path:
        builds.append(home)
        (home / "licences").mkdir()
        return _wheel(home / "llama_cpp_python-0.0.1-py3-none-any.whl", GOOD)

    monkeypatch.setattr(native, "_build", build)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(native.wheel())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds == [home] and found == [home / "llama_cpp_python-0.0.1-py3-none-any.whl"] * 4


def test_what_an_interrupted_build_left_is_no_wheel(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "work" / "out").mkdir(parents=True)
    _wheel(home / "work" / "out" / "half.whl", GOOD)
    asked = []

    def build(home: Path) -> Path:
        asked.append(home)
        return home

    monkeypatch.setattr(native, "_build", build)
    native.wheel()
    assert asked == [home]


def test_licences_of_what_is_compiled_in(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ["LICENSE.md", "vendor/llama.cpp/LICENSE", "vendor/llama.cpp/vendor/hash/xxhash/LICENSE"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"text of {name}")
    code = source / "vendor/llama.cpp/ggml/src/ggml-cpu/llamafile/sgemm.cpp"
    code.parent.mkdir(parents=True)
    code.write_text("// Copyright\n//\n// Permission\n\n#include <x>\n")
    native.collect_licences(source, tmp_path / "licences")
    texts = {file.name: file.read_text() for file in (tmp_path / "licences").iterdir()}
    assert len(texts) == 4 and texts["ggml-cpu-llamafile-sgemm.txt"] == "Copyright\n\nPermission\n"
    shutil.rmtree(source / "vendor" / "llama.cpp" / "vendor")
    with pytest.raises(BuildError, match="vendor/hash"):
        native.collect_licences(source, tmp_path / "licences")


def test_progress_and_the_end_of_a_failed_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "PROGRESS_SECONDS", 0.05)
    steps = "import time\nfor n in 1, 2, 3:\n    print(f'  [{n}/3] c++ x.cpp', flush=True)\n    time.sleep(0.2)\n"
    code = steps + "raise SystemExit('error: no such thing')"
    with pytest.raises(BuildError, match="exit code 1"):
        native.compile_loudly([sys.executable, "-c", code], {}, tmp_path / "log", "something")
    said = capfd.readouterr()
    assert "compiling: 2 of 3" in said.out and "no such thing" in said.err
    assert (tmp_path / "log").read_text().count("c++ x.cpp") == 3
