"""Loading the weights: a GGUF file, the first part of a split one, or a GGUF inside a larger file, mapped in place.

Knows nothing about contexts, slots or requests.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from server.errors import OperatorError
from server.llama.backends import Device
from server.llama.library import messages, native, reason
from server.llama.vocab import Vocabulary

log = logging.getLogger(__name__)

_LOAD_WITHOUT_MAPPING = 0
_UNALIGNED = "cannot mmap"


class Model:
    """One loaded model. `close` frees it; contexts made from it must be gone by then."""

    def __init__(self, handle: int, path: str, file: _File | None, keep: tuple[Any, ...] = (), devices: Sequence[Device] = ()) -> None:
        self._n = native()
        self.handle = handle
        self.path = path
        self.devices = tuple(devices)
        """GPUs that compute with it; none = the CPU alone."""
        self._file = file
        self._keep = keep
        self.vocab = Vocabulary(handle)

    def close(self) -> None:
        if self.handle:
            self._n.llama_model_free(self.handle)
            self.handle = 0
            if self._file is not None:
                self._file.close()

    # ---- facts -----------------------------------------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        """A value of the GGUF header as text (arrays: "[1, 2]"); None when it is not there."""
        call = self._n.llama_model_meta_val_str
        length: int = call(self.handle, key.encode(), ctypes.create_string_buffer(1), 1)
        if length < 0:
            return None
        buffer = ctypes.create_string_buffer(length + 1)
        call(self.handle, key.encode(), buffer, length + 1)
        return buffer.value.decode("utf-8", "replace")

    def number(self, suffix: str, default: int = 0) -> int:
        """An integer of this architecture ("attention.key_length"); of an array the largest."""
        return max(self.numbers(suffix), default=default)

    def numbers(self, suffix: str) -> list[int]:
        """The integers of a header value that may be one number or one per layer; [] when it is not there."""
        text = self.meta(f"{self.architecture}.{suffix}") or ""
        return [int(part) for part in re.findall(r"-?\d+", text)] if re.fullmatch(r"[\[\], \d-]*", text) else []

    @property
    def architecture(self) -> str:
        return self.meta("general.architecture") or "unknown"

    @property
    def name(self) -> str:
        return self.meta("general.name") or Path(self.path).stem

    @property
    def description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        self._n.llama_model_desc(self.handle, buffer, 256)
        return buffer.value.decode("utf-8", "replace")

    @property
    def ftype(self) -> str:
        return (self._n.llama_ftype_name(self._n.llama_model_ftype(self.handle)) or b"unknown").decode()

    @property
    def chat_template(self) -> str | None:
        text = self._n.llama_model_chat_template(self.handle, None)
        return None if text is None else text.decode("utf-8", "replace")

    @property
    def n_params(self) -> int:
        return int(self._n.llama_model_n_params(self.handle))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(self._n.llama_model_size(self.handle))

    @property
    def n_ctx_train(self) -> int:
        return int(self._n.llama_model_n_ctx_train(self.handle))

    @property
    def n_embd(self) -> int:
        return int(self._n.llama_model_n_embd(self.handle))

    @property
    def n_layers(self) -> int:
        return int(self._n.llama_model_n_layer(self.handle))

    @property
    def n_swa(self) -> int:
        """Width of the sliding attention window, tokens; 0 = every token sees all before it."""
        return int(self._n.llama_model_n_swa(self.handle))

    @property
    def is_recurrent(self) -> bool:
        """Some or all layers keep a running state instead of a cell per token."""
        return bool(self._n.llama_model_is_recurrent(self.handle) or self._n.llama_model_is_hybrid(self.handle))


class _File:
    """A C stream positioned at an offset, of the C runtime that llama.cpp uses."""

    def __init__(self, path: str, offset: int) -> None:
        if sys.platform == "win32":  # unverified: written without Windows at hand
            runtime = ctypes.CDLL("ucrtbase")
            open_file, seek, name, mode = runtime._wfopen, runtime._fseeki64, path, "rb"
            open_file.argtypes = [ctypes.c_wchar_p, ctypes.c_wchar_p]
        else:
            runtime = ctypes.CDLL(None, use_errno=True)
            open_file, seek, name, mode = runtime.fopen, runtime.fseeko, os.fsencode(path), b"rb"
            open_file.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        open_file.restype = ctypes.c_void_p
        seek.argtypes, seek.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int], ctypes.c_int
        self._close = runtime.fclose
        self._close.argtypes = [ctypes.c_void_p]
        self._seek, self._offset = seek, offset
        self.pointer: int | None = open_file(name, mode)
        if not self.pointer:
            raise OperatorError(f"{path} cannot be opened: {os.strerror(ctypes.get_errno() or 2)}")
        self.rewind()

    def rewind(self) -> None:
        if self._seek(self.pointer, self._offset, os.SEEK_SET):
            raise OperatorError(f"there is no position {self._offset} to read from in this file")

    def close(self) -> None:
        if self.pointer:
            self._close(self.pointer)
            self.pointer = None


def load_model(
    path: str,
    offset: int = 0,
    size: int = 0,
    *,
    devices: Sequence[Device] = (),
    n_gpu_layers: int | None = None,
    on_progress: Callable[[float], None] | None = None,
    use_extra_bufts: bool = True,
) -> Model:
    """Load a GGUF of `size` bytes (0 = up to the end) that starts at `offset` of a file. Backends must be loaded before.

    `devices`: GPUs to use, none = the CPU alone. `n_gpu_layers` None = all layers. `use_extra_bufts` False keeps every tensor in
    the mapped file: less memory, slower products. `on_progress` gets 0 to 1 on the calling thread.

    Raises:
        OperatorError: the file cannot be read or is no model that can generate text; in one sentence, with the native reason.
    """
    total = _file_size(path)
    size = size or total - offset
    if offset < 0 or size <= 0 or offset + size > total:
        raise OperatorError(f"{path} is too short: {size} bytes of weights should start at {offset}, but the file has {total}")
    whole = offset == 0 and size == total
    file = None if whole else _File(path, offset)
    handles = (ctypes.c_void_p * (len(devices) + 1))(*(device.handle for device in devices), None)
    params = native().llama_model_default_params()
    params.devices = ctypes.cast(handles, ctypes.c_void_p)
    params.n_gpu_layers = 0 if not devices else -1 if n_gpu_layers is None else n_gpu_layers
    params.use_extra_bufts = use_extra_bufts
    progress = _Progress(on_progress)
    params.progress_callback = progress.callback
    encoded = path.encode() if sys.platform == "win32" else os.fsencode(path)

    def attempt() -> tuple[int | None, str]:
        with messages.collect() as lines:
            if file is None:
                found = native().llama_model_load_from_file(encoded, params)
            else:
                file.rewind()
                found = native().llama_model_load_from_file_ptr(file.pointer, params)
        return found, reason(lines)

    handle, why = attempt()
    if not handle and _UNALIGNED in why:
        log.info("the weights are not aligned in the file, so they are copied into memory instead of mapped")
        params.load_mode = _LOAD_WITHOUT_MAPPING
        handle, why = attempt()
    if not handle:
        if file is not None:
            file.close()
        if progress.error is not None:
            raise progress.error
        raise OperatorError(f"the model in {path} cannot be loaded: {why or 'the native library gave no reason'}")
    model = Model(handle, path, file, (handles, progress), devices)
    if problem := _unusable(model):
        model.close()
        raise OperatorError(f"the model in {path} cannot be used: {problem}")
    return model


def _unusable(model: Model) -> str:
    n = native()
    if model.vocab.n_vocab == 0 or model.vocab.kind == 0:
        return "it has no vocabulary"
    if n.llama_model_has_encoder(model.handle):
        return f"{model.architecture} is an encoder-decoder architecture, which cannot be batched here"
    if not n.llama_model_has_decoder(model.handle):
        return f"{model.architecture} computes embeddings and cannot generate text"
    if n.llama_model_is_diffusion(model.handle):
        return f"{model.architecture} is a diffusion model, which does not generate token by token"
    return ""


def _file_size(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror or error}") from None


class _Progress:
    """Native progress reports passed on; an exception in the receiver stops the load and is kept."""

    def __init__(self, receiver: Callable[[float], None] | None) -> None:
        self.error: BaseException | None = None
        self._receiver = receiver
        self.callback = native().llama_progress_callback(self._report)

    def _report(self, fraction: float, _data: Any) -> bool:
        try:
            if self._receiver is not None:
                self._receiver(fraction)
        except BaseException as error:
            self.error = error
        return self.error is None
