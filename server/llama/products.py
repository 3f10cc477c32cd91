"""Known matrix products and attention run on one ggml device and compared with plain arithmetic; for the probe child.

Knows nothing about processes or choices. Sizes are small, but large enough to reach the tiled, packed and AMX kernels.
"""

from __future__ import annotations

import ctypes
import math
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import mul
from typing import Any

from server.llama.library import Symbols

P = ctypes.c_void_p
I64 = ctypes.c_int64
SIZE = ctypes.c_size_t

TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
F32, F16, Q8_0 = 0, 1, 8
N_ROWS, N_COLUMNS, BATCHES = 64, 256, (1, 32)
TOLERANCE = 0.05
"""Largest error allowed, in units of the reference's root mean square (8-bit activations stay below a tenth of it)."""


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", SIZE), ("mem_buffer", P), ("no_alloc", ctypes.c_bool)]


class _TypeTraits(ctypes.Structure):
    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", I64),
        ("blck_size_interleave", I64),
        ("type_size", SIZE),
        ("is_quantized", ctypes.c_bool),
        ("to_float", P),
        ("from_float_ref", P),
    ]


class WrongResult(Exception):
    """A device computed something else than arithmetic says."""


def noise(count: int, seed: int) -> array[float]:
    """Reproducible values in [-1, 1)."""
    state, values = seed * 2654435761 % 2**32, array("f")
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        values.append(state / 2**31 - 1.0)
    return values


class Bench:
    """Builds and runs one-operation graphs on a device of a loaded backend."""

    def __init__(self, symbols: Symbols, device: int, n_threads: int = 2) -> None:
        f = symbols.function
        self._init = f("ggml_init", P, _InitParams)
        self._free = f("ggml_free", None, P)
        self._tensor = f("ggml_new_tensor_3d", P, P, ctypes.c_int, I64, I64, I64)
        self._matrix = f("ggml_new_tensor_2d", P, P, ctypes.c_int, I64, I64)
        self._mul_mat = f("ggml_mul_mat", P, P, P, P)
        self._flash_attn = f("ggml_flash_attn_ext", P, P, P, P, P, P, ctypes.c_float, ctypes.c_float, ctypes.c_float)
        self._graph = f("ggml_new_graph", P, P)
        self._expand = f("ggml_build_forward_expand", None, P, P)
        self._nbytes = f("ggml_nbytes", SIZE, P)
        self._traits = f("ggml_get_type_traits", ctypes.POINTER(_TypeTraits), ctypes.c_int)
        self._quantize = f("ggml_quantize_chunk", SIZE, ctypes.c_int, P, P, I64, I64, I64, P)
        self._allocate_in = f("ggml_backend_alloc_ctx_tensors_from_buft", P, P, P)
        self._buffer_free = f("ggml_backend_buffer_free", None, P)
        self._set = f("ggml_backend_tensor_set", None, P, P, SIZE, SIZE)
        self._get = f("ggml_backend_tensor_get", None, P, P, SIZE, SIZE)
        self._supports = f("ggml_backend_dev_supports_op", ctypes.c_bool, P, P)
        self._compute = f("ggml_backend_graph_compute", ctypes.c_int, P, P)
        self._backend_free = f("ggml_backend_free", None, P)
        self._buft_name = f("ggml_backend_buft_name", ctypes.c_char_p, P)
        self._device = device
        self._default = f("ggml_backend_dev_buffer_type", P, P)(device)
        self._backend = f("ggml_backend_dev_init", P, P, ctypes.c_char_p)(device, None)
        if not self._backend:
            raise WrongResult("the device cannot be initialised")
        registry = f("ggml_backend_dev_backend_reg", P, P)(device)
        self._address = f("ggml_backend_reg_get_proc_address", P, P, ctypes.c_char_p)
        set_threads = self._address(registry, b"ggml_backend_set_n_threads")
        if set_threads:
            ctypes.CFUNCTYPE(None, P, ctypes.c_int)(set_threads)(self._backend, n_threads)
        self._registry = registry

    def close(self) -> None:
        self._backend_free(self._backend)

    def buffer_types(self) -> Iterator[tuple[str, int]]:
        """The kinds of memory that weights can lie in: plain, and the packed layouts of this library (AMX, repack)."""
        yield "plain", self._default
        get = self._address(self._registry, b"ggml_backend_dev_get_extra_bufts")
        extra = ctypes.CFUNCTYPE(ctypes.POINTER(P), P)(get)(self._device) if get else None
        for buffer_type in extra or ():
            if not buffer_type:
                return
            yield (self._buft_name(buffer_type) or b"?").decode(), buffer_type

    def quantize(self, kind: int, values: array[float]) -> tuple[bytes, array[float]]:
        """Rows of `N_COLUMNS` in a weight type, and the values that this encoding stands for."""
        traits = self._traits(kind).contents
        encoded = ctypes.create_string_buffer(len(values) // traits.blck_size * traits.type_size)
        source = (ctypes.c_float * len(values)).from_buffer(values)
        self._quantize(kind, source, encoded, 0, len(values) // N_COLUMNS, N_COLUMNS, None)
        decoded = array("f", bytes(4 * len(values)))
        target = (ctypes.c_float * len(values)).from_buffer(decoded)
        ctypes.CFUNCTYPE(None, P, P, I64)(traits.to_float)(encoded, target, len(values))
        return encoded.raw, decoded

    def run(self, inputs: Sequence[tuple[tuple[int, ...], bytes, int]], operation: Callable[..., Any]) -> array[float] | None:
        """The float32 result of one operation; None when the device does not do it with inputs in that memory.

        Each input is (type and shape, raw content, buffer type).
        """
        contexts, buffers, tensors = [], [], []
        try:
            for shape, _, buffer_type in inputs:
                contexts.append(self._init(_InitParams(1 << 14, None, True)))
                new = self._matrix if len(shape) == 3 else self._tensor
                tensors.append(new(contexts[-1], *shape))
                buffers.append(self._allocate_in(contexts[-1], buffer_type))
            contexts.append(self._init(_InitParams(1 << 20, None, True)))
            output = operation(contexts[-1], *tensors)
            if not self._supports(self._device, output):
                return None
            graph = self._graph(contexts[-1])
            self._expand(graph, output)
            buffers.append(self._allocate_in(contexts[-1], self._default))
            if not all(buffers):
                raise WrongResult("memory cannot be allocated")
            for tensor, (_, raw, _) in zip(tensors, inputs, strict=True):
                self._set(tensor, raw, 0, len(raw))
            if status := self._compute(self._backend, graph):
                raise WrongResult(f"the computation failed with status {status}")
            result = array("f", bytes(self._nbytes(output)))
            self._get(output, (ctypes.c_float * len(result)).from_buffer(result), 0, 4 * len(result))
            return result
        finally:
            for buffer in buffers:
                if buffer:
                    self._buffer_free(buffer)
            for context in contexts:
                self._free(context)

    def product(self, kind: int, encoded: bytes, x: array[float], n_batch: int, buffer_type: int) -> array[float] | None:
        """`N_ROWS` x n_batch values, row index fastest."""
        weights = ((kind, N_COLUMNS, N_ROWS), encoded, buffer_type)
        return self.run([weights, ((F32, N_COLUMNS, n_batch), x.tobytes(), self._default)], self._mul_mat)

    def attention(self, kind: int, q: bytes, k: bytes, v: bytes, shape: tuple[int, int, int]) -> array[float] | None:
        """Unmasked attention of n_q queries over n_kv cells with heads of size d; `shape` = (d, n_q, n_kv)."""
        d, n_q, n_kv = shape
        inputs = [((F32, d, n_q, 1), q), ((kind, d, n_kv, 1), k), ((kind, d, n_kv, 1), v)]

        def operation(context: int, *qkv: int) -> Any:
            return self._flash_attn(context, *qkv, None, 1 / math.sqrt(d), 0.0, 0.0)

        return self.run([(s, raw, self._default) for s, raw in inputs], operation)


def _compare(what: str, found: Sequence[float], expected: Sequence[float]) -> None:
    scale = math.sqrt(sum(map(mul, expected, expected)) / len(expected))
    error = max(abs(a - b) if math.isfinite(a) else math.inf for a, b in zip(found, expected, strict=True))
    if not error <= TOLERANCE * scale:
        raise WrongResult(f"{what} came out wrong (off by {error:.3g}, the values are about {scale:.3g})")


def _check_products(bench: Bench, announce: Callable[[str], None]) -> int:
    checked = 0
    x = noise(N_COLUMNS * max(BATCHES), 7)
    total = [sum(x[i::N_COLUMNS]) for i in range(N_COLUMNS)]
    places = list(bench.buffer_types())
    for name, kind in TYPES.items():
        encoded, decoded = bench.quantize(kind, noise(N_ROWS * N_COLUMNS, kind))
        rows = [decoded[i * N_COLUMNS : (i + 1) * N_COLUMNS] for i in range(N_ROWS)]

        def expect(vector: Sequence[float], rows: list[array[float]] = rows) -> list[float]:
            return [sum(map(mul, row, vector)) for row in rows]

        first, last, everything = expect(x[:N_COLUMNS]), expect(x[-N_COLUMNS:]), expect(total)
        for place, buffer_type in places:
            for n_batch in BATCHES:
                what = f"the product of a {name} matrix ({place} layout) with {n_batch} column{'s' * (n_batch > 1)}"
                announce(f"computing {what}")
                y = bench.product(kind, encoded, x[: N_COLUMNS * n_batch], n_batch, buffer_type)
                if y is None:
                    continue
                checked += 1
                _compare(what, y[:N_ROWS], first)
                if n_batch > 1:  # the sum over all columns covers every value that is not compared on its own
                    _compare(what, y[-N_ROWS:], last)
                    _compare(what, [sum(y[i::N_ROWS]) for i in range(N_ROWS)], everything)
    return checked


def _attend(q: Sequence[float], keys: Sequence[Sequence[float]], values: Sequence[Sequence[float]]) -> list[float]:
    scores = [math.exp(sum(map(mul, q, key)) / math.sqrt(len(q))) for key in keys]
    return [sum(map(mul, scores, column)) / sum(scores) for column in zip(*values, strict=True)]


def _check_attention(bench: Bench, announce: Callable[[str], None]) -> int:
    checked, d, n_kv = 0, 64, 64
    for name, kind in (("F16", F16), ("Q8_0", Q8_0)):
        k, v = noise(d * n_kv, 11), noise(d * n_kv, 13)
        if kind == F16:
            raw_k, raw_v = (struct.pack(f"<{len(x)}e", *x) for x in (k, v))
        else:
            (raw_k, k), (raw_v, v) = bench.quantize(kind, k), bench.quantize(kind, v)
        keys, values = ([x[i : i + d] for i in range(0, d * n_kv, d)] for x in (k, v))
        for n_q in BATCHES:
            what = f"attention over a {name} cache with {n_q} quer{'ies' if n_q > 1 else 'y'}"
            announce(f"computing {what}")
            q = noise(d * n_q, 17)
            y = bench.attention(kind, q.tobytes(), raw_k, raw_v, (d, n_q, n_kv))
            if y is not None:
                checked += 1
                _compare(what, y[:d], _attend(q[:d], keys, values))
                _compare(what, y[-d:], _attend(q[-d:], keys, values))
    return checked


def verify(symbols: Symbols, device: int, announce: Callable[[str], None]) -> int:
    """Run everything on one device; the number of comparisons made. `announce` hears what comes next.

    Raises:
        WrongResult: a result differs, or the device cannot run at all.
    """
    bench = Bench(symbols, device)
    try:
        checked = _check_products(bench, announce) + _check_attention(bench, announce)
    finally:
        bench.close()
    if not checked:
        raise WrongResult("the device supports none of the operations")
    return checked
