"""The probe's arithmetic: a working library passes, and a result that is wrong anywhere does not."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Callable

import pytest

from server.llama import products
from server.llama.backends import devices
from server.llama.library import ggml
from server.llama.products import Bench, WrongResult, verify
from tests.native import loaded


@pytest.fixture
def cpu() -> int:
    loaded()
    return next(device.handle for device in devices() if device.kind == "cpu")


def test_the_chosen_library_passes_every_comparison(cpu: int) -> None:
    steps: list[str] = []
    checked = verify(ggml(), cpu, steps.append)
    assert checked >= 2 * len(products.TYPES) + 4
    assert len(steps) >= checked and len(set(steps)) == len(steps)


def _spoil(index: int, value: float | None) -> Callable[[array[float]], array[float]]:
    def change(result: array[float]) -> array[float]:
        result[index] = result[index - 1] if value is None else value
        return result

    return change


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "F16"])
@pytest.mark.parametrize("spoil", [_spoil(0, math.nan), _spoil(1, None), _spoil(40 * products.N_ROWS // 2, 1e30), _spoil(-1, math.inf)])
def test_one_wrong_value_is_noticed(
    cpu: int, monkeypatch: pytest.MonkeyPatch, kind: str, spoil: Callable[[array[float]], array[float]]
) -> None:
    original = Bench.product

    def product(self: Bench, number: int, encoded: bytes, x: array[float], n_batch: int, buffer_type: int) -> array[float] | None:
        y = original(self, number, encoded, x, n_batch, buffer_type)
        return spoil(y) if y is not None and number == products.TYPES[kind] and n_batch == max(products.BATCHES) else y

    monkeypatch.setattr(Bench, "product", product)
    with pytest.raises(WrongResult, match=f"{kind} matrix .* with 32 columns came out wrong"):
        verify(ggml(), cpu, lambda step: None)


def test_rows_in_the_wrong_order_are_noticed(cpu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Bench.product

    def product(self: Bench, number: int, encoded: bytes, x: array[float], n_batch: int, buffer_type: int) -> array[float] | None:
        y = original(self, number, encoded, x, n_batch, buffer_type)
        if y is not None:
            y[0], y[1] = y[1], y[0]
        return y

    monkeypatch.setattr(Bench, "product", product)
    with pytest.raises(WrongResult, match="with 1 column came out wrong"):
        verify(ggml(), cpu, lambda step: None)


def test_wrong_attention_is_noticed(cpu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "attention", lambda self, kind, q, k, v, shape: array("f", bytes(4 * shape[0] * shape[1])))
    with pytest.raises(WrongResult, match="attention over a F16 cache with 1 query came out wrong"):
        verify(ggml(), cpu, lambda step: None)


def test_a_device_that_can_do_nothing_does_not_pass(cpu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "run", lambda self, inputs, operation: None)
    with pytest.raises(WrongResult, match="supports none"):
        verify(ggml(), cpu, lambda step: None)


def test_quantised_values_are_near_the_originals(cpu: int) -> None:
    bench = Bench(ggml(), cpu)
    values = products.noise(4 * products.N_COLUMNS, 5)
    assert min(values) < -0.9 and max(values) > 0.9
    for name, tolerance in (("Q8_0", 0.01), ("Q4_0", 0.15), ("Q6_K", 0.05), ("F16", 0.001)):
        _, decoded = bench.quantize(products.TYPES[name], values)
        assert max(abs(a - b) for a, b in zip(values, decoded, strict=True)) < tolerance
    bench.close()
    assert ctypes.sizeof(products._TypeTraits) == 56
