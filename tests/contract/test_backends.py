"""Contract: CPU libraries rate themselves, register once, compute what arithmetic says, and name their devices."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from server.llama import backends
from server.llama.library import ggml, library_directory
from tests.native import cpu_choice, run_python

POINTER = ctypes.c_void_p


def test_every_cpu_library_rates_itself() -> None:
    """In a child: loading a library made for another CPU may not be survivable."""
    code = """
import ctypes, json
from server.llama.backends import libraries
from server.llama.library import library_directory, open_ggml
base = open_ggml(library_directory())  # the backends find libggml-base only if it is there already: they have no search path
print(json.dumps({l.name: ctypes.CDLL(str(l.path)).ggml_backend_score() for l in libraries(library_directory()) if l.is_cpu}))
"""
    scores = json.loads(run_python(code).stdout)
    assert set(scores) == {library.name for library in backends.libraries(library_directory()) if library.is_cpu}
    assert all(isinstance(score, int) and score >= 0 for score in scores.values())
    assert scores[cpu_choice().name] > 0
    assert len(set(scores.values())) > 1


def test_a_library_loaded_twice_is_registered_once(lib: Any) -> None:
    count = ggml().function("ggml_backend_reg_count", ctypes.c_size_t)
    path = cpu_choice().path
    assert path is not None
    before = count()
    assert backends.load(path) == backends.load(path)
    assert count() == before


def test_the_chosen_library_passed_and_the_others_say_why() -> None:
    choice = cpu_choice()
    assert choice.path is not None and choice.path.is_file()
    assert all(why for _, why in choice.passed_over)
    assert choice.name not in dict(choice.passed_over)


def test_the_cpu_is_a_device_with_memory(lib: Any) -> None:
    cpu = [device for device in backends.devices() if device.kind == "cpu"]
    assert len(cpu) == 1
    assert cpu[0].memory_total >= cpu[0].memory_free > 0 and cpu[0].description


def test_cpu_libraries_offer_their_thread_count_and_packed_layouts(lib: Any) -> None:
    """The names under which the probe finds what it has to exercise."""
    registry = ggml().function("ggml_backend_reg_by_name", POINTER, ctypes.c_char_p)(b"CPU")
    address = ggml().function("ggml_backend_reg_get_proc_address", POINTER, POINTER, ctypes.c_char_p)
    for name in (b"ggml_backend_set_n_threads", b"ggml_backend_dev_get_extra_bufts"):
        assert address(registry, name)
