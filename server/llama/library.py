"""Loading libllama: the ctypes bindings without their package, symbols of ggml, and native messages turned into log records.

Knows nothing about models or requests. Everything is loaded by absolute path out of the `llama_cpp/lib` directory.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.machinery
import importlib.util
import logging
import os
import re
import sys
import threading
import types
import typing
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from server.spawn import NATIVE_REDIRECTIONS

log = logging.getLogger("server.llama.native")

_ENVIRONMENT = {
    # An assertion in ggml would start gdb on the process and take seconds to die, with requests waiting for its end.
    "GGML_NO_BACKTRACE": "1",
    # Turns that a thread waits at a barrier before it sleeps; GNU's default of 300,000 makes two threads beside any busy neighbour
    # (or an overbooked host) 3 to 8 times slower: 16 streams 16 tokens/s, with 300 turns 69, with 1,000 60. Read once, at load.
    "GOMP_SPINCOUNT": "300",
}
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.DEBUG, 4: logging.WARNING}
_ERROR, _CONTINUED = 4, 5
_lock = threading.RLock()


@cache
def package_directory() -> Path:
    """Where the bindings live, found without importing them.

    Raises:
        ImportError: llama-cpp-python is not installed.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("llama-cpp-python is not installed")
    return Path(os.path.abspath(list(spec.submodule_search_locations)[0]))


def library_directory() -> Path:
    """The directory of libllama, libggml and the backend libraries."""
    return package_directory() / "lib"


class Symbols:
    """Functions looked up by name in loaded libraries, in order. Elsewhere than on Windows the first one is enough:
    dlsym goes through a library's dependencies too."""

    def __init__(self, *libraries: ctypes.CDLL) -> None:
        self._libraries = libraries

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """A foreign function with its own signature.

        Raises:
            AttributeError: no library has it.
        """
        for library in self._libraries:
            try:
                found = library[name]
            except AttributeError:
                continue
            found.restype, found.argtypes = result, list(arguments)
            return found
        raise AttributeError(f"no native library exports {name}")


def library_file(directory: Path, stem: str) -> Path:
    """Path of the shared library `stem` ("ggml-base") under this system's naming."""
    names = [f"{stem}.dll", f"lib{stem}.dll"] if sys.platform == "win32" else [f"lib{stem}.so", f"lib{stem}.dylib"]
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise FileNotFoundError(f"{names[0]} is missing in {directory}")


def open_ggml(directory: Path) -> Symbols:
    """libggml on its own, for a process that never loads libllama (in one that does it would be a second registry)."""
    _prepare_environment()
    symbols = Symbols(*(ctypes.CDLL(str(library_file(directory, stem))) for stem in ("ggml", "ggml-base")))
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    messages.attach(symbols.function("ggml_log_set", None, callback, ctypes.c_void_p), callback)
    return symbols


def _prepare_environment() -> None:
    """What native code reads from the environment while it is loaded; the operator's own values stay."""
    for name in NATIVE_REDIRECTIONS:
        os.environ.pop(name, None)
    for name, value in _ENVIRONMENT.items():
        if name != "GOMP_SPINCOUNT" or "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault(name, value)


@cache
def native() -> Any:
    """The module `llama_cpp.llama_cpp`: plain ctypes bindings, libllama loaded, messages captured. Loads once.

    The package's `__init__` would pull in numpy, jinja2, diskcache and more, so a bare package takes its place.
    """
    with _lock:
        _prepare_environment()
        if "llama_cpp" not in sys.modules:
            package = types.ModuleType("llama_cpp")
            package.__path__ = [str(package_directory())]
            package.__spec__ = importlib.machinery.ModuleSpec("llama_cpp", None, is_package=True)
            sys.modules["llama_cpp"] = package
        # The bindings want one name of typing_extensions, which takes longer to import than all the rest.
        stand_in = sys.modules.setdefault("typing_extensions", typing)
        try:
            module = importlib.import_module("llama_cpp.llama_cpp")
        finally:
            if stand_in is typing:
                del sys.modules["typing_extensions"]
        messages.attach(module.llama_log_set, module.llama_log_callback)
        module.llama_backend_init()
        return module


@cache
def ggml() -> Symbols:
    """ggml's functions through the handle of libllama, so that there is one backend registry."""
    library: ctypes.CDLL = native()._lib
    if sys.platform != "win32":
        return Symbols(library)
    directory = library_directory()
    return Symbols(library, *(ctypes.CDLL(str(library_file(directory, stem))) for stem in ("ggml", "ggml-base")))


class Messages:
    """What native code has to say: whole lines go to the log, error lines are kept so that a failure can be explained."""

    def __init__(self) -> None:
        self._callback: Any = None  # native code holds a bare pointer to it
        self._text = ""
        self._level = logging.DEBUG
        self._native_level = 2
        self._lock = threading.Lock()
        self._collectors = 0
        self.errors: deque[str] = deque(maxlen=32)

    def attach(self, set_callback: Any, callback_type: Any) -> None:
        """Become the receiver of native messages, until the interpreter shuts down and must not be called any more."""
        self._callback = callback_type(self._receive)
        set_callback(self._callback, None)
        atexit.register(set_callback, callback_type(), None)

    def _receive(self, level: int, text: bytes | None, _data: Any) -> None:
        if not text:
            return
        with self._lock:
            if level != _CONTINUED:
                self._level, self._native_level = _LEVELS.get(level, logging.DEBUG), level
            *lines, self._text = (self._text + text.decode("utf-8", "replace")).split("\n")
            if len(self._text) > 65536:
                self._text = ""
            for line in lines:
                if self._native_level == _ERROR:
                    self.errors.append(line)
                if line:
                    log.log(logging.DEBUG if self._collectors else self._level, "%s", line)

    @contextmanager
    def collect(self) -> Iterator[list[str]]:
        """The error lines that appear inside the block (complete once it is left); whoever asks for them reports them."""
        with self._lock:
            self._collectors += 1
            self.errors.clear()
        lines: list[str] = []
        try:
            yield lines
        finally:
            with self._lock:
                self._collectors -= 1
                lines.extend(self.errors)


messages = Messages()


def reason(lines: list[str]) -> str:
    """The first cause among some native error lines, without C++ function names in front; "" if there is none."""
    for line in lines:
        text = re.sub(r"^(?:[A-Za-z_][\w:~]*: )*(?:error loading model: )?(?:[a-z_]\w*: )?", "", line).strip()
        if text and not text.startswith("failed to load model"):
            return text
    return ""
