"""Backend libraries beside libllama and the devices they bring: listing, loading one by one, choosing by name.

Nothing here decides which CPU library is fit for use (`cpu.py`) and nothing ever loads "all" of them.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server.errors import OperatorError
from server.llama.library import Symbols, ggml, library_directory, messages, reason

log = logging.getLogger(__name__)

_FILE_NAME = re.compile(r"(?:lib)?ggml-(?P<name>[A-Za-z0-9_.+-]+?)\.(?:so|dll|dylib)")
_TYPES = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator", 4: "meta"}


@dataclass(frozen=True, slots=True)
class BackendLibrary:
    """One loadable backend. `name` is the CPU variant ("haswell") or the kind of device ("vulkan")."""

    name: str
    path: Path
    is_cpu: bool


@dataclass(frozen=True, slots=True)
class Device:
    """What the registry knows of a device; memory in bytes, `handle` for native calls."""

    name: str
    description: str
    kind: str
    memory_free: int
    memory_total: int
    handle: int

    @property
    def is_gpu(self) -> bool:
        return self.kind in ("gpu", "igpu")


def libraries(directory: Path) -> list[BackendLibrary]:
    """Every backend library in a directory, by name; libggml and libggml-base are not backends."""
    found = []
    for path in sorted(directory.iterdir()):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None or match["name"] == "base":
            continue
        name = match["name"]
        is_cpu = name == "cpu" or name.startswith("cpu-")
        found.append(BackendLibrary(name.removeprefix("cpu-") if is_cpu else name, path.absolute(), is_cpu))
    return found


def check_names(cpu_variant: str | None, device: str, directory: Path | None = None) -> None:
    """Whether there are libraries for these values of --cpu-variant and --device; nothing is loaded, so they may still not work here.

    Raises:
        OperatorError: there are none.
    """
    found = libraries(directory or library_directory())
    variants = [library.name for library in found if library.is_cpu]
    if cpu_variant is not None and variants and cpu_variant not in variants:
        raise no_such_variant(cpu_variant, variants)
    if wants_gpu(device) and device.lower() != "auto" and len(variants) == len(found) > 0:
        raise OperatorError(f'there is no device "{device}": this build holds CPU libraries only', hint="--device takes none or auto here")


def no_such_variant(name: str, variants: Sequence[str]) -> OperatorError:
    return OperatorError(f'there is no CPU library "{name}" in this build', hint=f"--cpu-variant takes one of: {', '.join(variants)}")


def load(path: Path, symbols: Symbols | None = None) -> int:
    """Load one backend library into the registry; its handle.

    Raises:
        OperatorError: it is not a backend for this machine.
    """
    symbols = symbols or ggml()
    with messages.collect() as lines:
        registry: int | None = symbols.function("ggml_backend_load", ctypes.c_void_p, ctypes.c_char_p)(str(path).encode())
    if not registry:
        raise OperatorError(f"{path.name} cannot be loaded: {reason(lines) or 'it does not support this machine'}")
    return registry


def devices(symbols: Symbols | None = None) -> list[Device]:
    """The devices of all loaded backends."""
    f = (symbols or ggml()).function
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    name, description = f("ggml_backend_dev_name", text, pointer), f("ggml_backend_dev_description", text, pointer)
    kind = f("ggml_backend_dev_type", ctypes.c_int, pointer)
    memory = f("ggml_backend_dev_memory", None, pointer, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))
    get = f("ggml_backend_dev_get", pointer, ctypes.c_size_t)
    found = []
    for index in range(f("ggml_backend_dev_count", ctypes.c_size_t)()):
        handle = get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(handle, free, total)
        names = [(text or b"?").decode("utf-8", "replace") for text in (name(handle), description(handle))]
        found.append(Device(names[0], names[1], _TYPES.get(kind(handle), "other"), free.value, total.value, handle))
    return found


def wants_gpu(requested: str) -> bool:
    """Whether GPU libraries are worth loading for this value of --device."""
    return requested.lower() not in ("none", "cpu")


def select(requested: str, available: Sequence[Device]) -> list[Device]:
    """The GPU devices that --device asks for; empty = the CPU alone. Names compare without case; commas join several.

    Raises:
        OperatorError: no device has that name.
    """
    gpus = [device for device in available if device.is_gpu]
    if not wants_gpu(requested):
        return []
    if requested.lower() == "auto":
        dedicated = [device for device in gpus if device.kind == "gpu"]
        return dedicated or gpus[:1]
    chosen = []
    for name in filter(None, (part.strip() for part in requested.split(","))):
        device = next((gpu for gpu in gpus if gpu.name.lower() == name.lower()), None)
        if device is None:
            names = ", ".join(["none", "auto", *(f"{gpu.name} ({gpu.description})" for gpu in gpus)])
            raise OperatorError(f'there is no device "{name}" on this machine', hint=f"--device takes one of: {names}")
        chosen.append(device)
    return chosen
