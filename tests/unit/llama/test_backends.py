"""Backend libraries are told apart by file name, and --device picks GPUs by name or says which there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.errors import OperatorError
from server.llama.backends import Device, libraries, load, select, wants_gpu
from tests.native import loaded


def test_only_backends_are_listed_under_each_systems_naming(tmp_path: Path) -> None:
    for name in ("libllama.so", "libggml.so", "libggml-base.so", "libggml-cpu-zen4.so", "ggml-cpu-haswell.dll", "ggml-base.dll", "ggml.dll",
                 "libggml-cpu-apple_m1.dylib", "libggml-vulkan.so", "libggml-cpu.so", "libggml-blas.so.txt", "readme"):  # fmt: skip
        (tmp_path / name).touch()
    found = {library.name: library.is_cpu for library in libraries(tmp_path)}
    assert found == {"zen4": True, "haswell": True, "apple_m1": True, "cpu": True, "vulkan": False}
    assert all(library.path.is_absolute() for library in libraries(tmp_path))


def test_a_file_that_is_no_library_is_an_operators_error(tmp_path: Path) -> None:
    loaded()
    (tmp_path / "libggml-cpu-bad.so").write_bytes(b"garbage")
    with pytest.raises(OperatorError, match="libggml-cpu-bad.so cannot be loaded"):
        load(tmp_path / "libggml-cpu-bad.so")


def _device(name: str, kind: str) -> Device:
    return Device(name, f"{name} by Example", kind, 1, 2, 3)


CPU, BIG, SMALL = _device("CPU", "cpu"), _device("Vulkan0", "gpu"), _device("Vulkan1", "igpu")


@pytest.mark.parametrize(
    ("requested", "available", "expected"),
    [
        ("auto", [CPU], []),
        ("auto", [CPU, BIG, SMALL], [BIG]),
        ("auto", [SMALL, CPU], [SMALL]),
        ("none", [CPU, BIG], []),
        ("CPU", [CPU, BIG], []),
        ("vulkan1", [CPU, BIG, SMALL], [SMALL]),
        ("Vulkan1, Vulkan0", [CPU, BIG, SMALL], [SMALL, BIG]),
    ],
)
def test_devices_are_chosen_by_name(requested: str, available: list[Device], expected: list[Device]) -> None:
    assert select(requested, available) == expected
    assert wants_gpu(requested) or expected == []


def test_an_unknown_device_names_those_that_exist() -> None:
    with pytest.raises(OperatorError, match="CUDA7") as caught:
        select("CUDA7", [CPU, BIG])
    assert caught.value.hint == "--device takes one of: none, auto, Vulkan0 (Vulkan0 by Example)"
