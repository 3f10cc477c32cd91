"""Contract: the bindings load alone, their structures match the library, and there is exactly one backend registry."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from server.llama.library import ggml, library_directory
from tests.native import ROOT, run_python


def test_the_bindings_load_without_their_package() -> None:
    code = """
import json, sys
from server.llama.library import native
native()
loaded = [name for name in ("numpy", "jinja2", "diskcache", "llama_cpp.llama", "typing_extensions") if name in sys.modules]
print(json.dumps([loaded, "llama_cpp.llama_cpp" in sys.modules]))
"""
    done = run_python(code)
    assert json.loads(done.stdout) == [[], True], done.stderr


def test_nothing_native_reaches_stdout(tmp_path: Path) -> None:
    code = """
import sys, logging
from server.llama.library import native
logging.basicConfig(stream=sys.stderr, level=logging.DEBUG)
library = native()
library.llama_model_load_from_file(sys.argv[1].encode(), library.llama_model_default_params())
"""
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    done = run_python(code, str(tmp_path / "bad.gguf"))
    assert done.returncode == 0 and done.stdout == "" and "no backends are loaded" in done.stderr


def test_context_parameters_lie_where_the_bindings_say(lib: Any) -> None:
    found = lib.llama_context_default_params()
    numbers = (found.n_ctx, found.n_batch, found.n_ubatch, found.n_seq_max, found.n_outputs_max, found.flash_attn_type)
    assert numbers == (512, 2048, 512, 1, 0, -1)
    assert (found.type_k, found.type_v) == (1, 1)
    assert (found.offload_kqv, found.no_perf, found.op_offload, found.swa_full, found.kv_unified) == (True, True, True, True, False)


def test_model_parameters_lie_where_the_bindings_say(lib: Any) -> None:
    found = lib.llama_model_default_params()
    assert (found.n_gpu_layers, found.load_mode, found.lazy_mode, found.main_gpu) == (-1, -1, 1, 0)
    assert (found.vocab_only, found.check_tensors, found.use_extra_bufts, found.no_host, found.no_alloc) == (
        False,
        False,
        True,
        False,
        False,
    )


def test_ggml_is_reached_through_the_handle_of_libllama(lib: Any) -> None:
    assert ggml().function("ggml_backend_reg_count", ctypes.c_size_t)() >= 1
    assert ggml().function("ggml_backend_dev_count", ctypes.c_size_t)() >= 1


def test_a_second_copy_of_libggml_is_a_second_registry(tmp_path: Path) -> None:
    """Why every call goes through libllama's handle, and why the file carries one copy of each library."""
    code = """
import ctypes, json, shutil, sys
from tests.native import loaded
from server.llama.library import ggml, library_directory, library_file
loaded()
original = library_file(library_directory(), "ggml")
copy = shutil.copy(original, sys.argv[1])
counts = []
for library in (ctypes.CDLL(str(original)), ctypes.CDLL(copy)):
    count = library.ggml_backend_reg_count
    count.restype = ctypes.c_size_t
    counts.append(count())
print(json.dumps([ggml().function("ggml_backend_reg_count", ctypes.c_size_t)(), *counts]))
"""
    done = run_python(code, str(tmp_path / "libggml-second.so"))
    ours, same_file, copied_file = json.loads(done.stdout)
    assert ours >= 1 and same_file == ours
    assert copied_file == 0


def test_one_copy_of_each_library_is_shipped() -> None:
    names = [path.name for path in library_directory().iterdir() if path.is_file() and ("llama" in path.name or "ggml" in path.name)]
    stems = [name.split(".")[0] for name in names if not name.endswith(".pc")]
    assert len(stems) == len(set(stems)), "libggml.so and libggml.so.0 would be two libraries with two registries"


def test_threads_do_not_spin_long_at_barriers() -> None:
    """libgomp reads its policy once, when it is loaded."""
    code = """
import os, sys
os.environ.pop("GOMP_SPINCOUNT", None)
os.environ["OMP_DISPLAY_ENV"] = "VERBOSE"
os.environ.update(pair.split("=") for pair in sys.argv[1:])
from server.llama.library import native
native()
"""
    if sys.platform == "linux":
        assert "GOMP_SPINCOUNT = '300'" in run_python(code).stderr
        assert "GOMP_SPINCOUNT = '77'" in run_python(code, "GOMP_SPINCOUNT=77").stderr
        assert "GOMP_SPINCOUNT = '300'" not in run_python(code, "OMP_WAIT_POLICY=passive").stderr


def test_nothing_loads_all_backends() -> None:
    sources = [path for path in (ROOT / "server").rglob("*.py") if "ggml_backend_load_all(" in path.read_text("utf-8")]
    assert sources == []
