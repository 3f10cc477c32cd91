"""Runs `llama_cpp.server` on a wheel whose CPU backend is a library of its own. Runs in that server's environment: imports nothing of ours.

Usage: python python_server.py /path/to/libggml-cpu-VARIANT.so [arguments of llama_cpp.server]
"""

from __future__ import annotations

import ctypes
import runpy
import sys
from importlib import import_module


def main() -> None:
    backend = sys.argv.pop(1)
    library = import_module("llama_cpp.llama_cpp")._lib
    load = library.ggml_backend_load  # found through libllama: another copy of libggml would have a registry of its own
    load.argtypes, load.restype = [ctypes.c_char_p], ctypes.c_void_p
    if not load(backend.encode()):
        raise SystemExit(f"{backend} cannot be loaded")
    runpy.run_module("llama_cpp.server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
