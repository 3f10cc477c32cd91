"""The runner's door: one call from settings to a model that decodes, with every mistake a sentence."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any

import pytest

from server.errors import OperatorError
from server.llama.context import KV_TYPES, kv_type
from server.llama.library import ggml
from server.llama.runtime import open_runtime
from server.protocol import RunnerSettings, SamplingParams
from tests import tiny
from tests.native import cpu_choice, loaded, rows


def _open(path: Path, **settings: Any) -> RunnerSettings:
    loaded()
    return RunnerSettings(path=str(path), cpu_variant=cpu_choice().name, device="none", **settings)


def test_a_model_is_loaded_and_described(smollm2: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen: list[tuple[str, float]] = []
    runtime = open_runtime(_open(smollm2, ctx_size=1024, parallel=2, threads=1, cache_dir=str(tmp_path)), lambda *p: seen.append(p))
    info = runtime.info
    assert (info.architecture, info.n_vocab, info.n_ctx_train, info.n_layers, info.n_params) == ("llama", 49152, 8192, 30, 134515008)
    assert (info.n_slots, info.n_ctx, info.n_ctx_slot, info.n_threads) == (2, 1024, 512, 1)
    assert (info.kv_type_k, info.kv_type_v, info.deterministic, info.n_gpu_layers) == ("f16", "f16", False, 0)
    assert info.bos_token == "<|im_start|>" and info.eos_token == "<|im_end|>" and "im_start" in (info.chat_template or "")
    assert info.ftype == "Q4_1" and info.size > 90 << 20 and info.load_seconds > 0
    assert info.cpu_variant == cpu_choice().name and info.cpu_variant_reason
    assert len(info.devices) == 1 and info.devices[0].startswith("CPU (")
    assert [stage for stage in dict(seen)] == ["hardware", "weights", "context"]
    assert all(fraction == 1.0 for fraction in dict(seen).values())
    assert any("2 slots" in record.getMessage() for record in caplog.records)
    decoder, vocab = runtime.decoder, runtime.vocab
    tokens = vocab.tokenize("The capital of France is", add_special=True, parse_special=True)
    decoder.decode(rows(1, tokens))
    sampler = decoder.sampler(SamplingParams(temperature=0.0))
    assert vocab.piece(sampler.sample(len(tokens) - 1, None)[0]) == b" Paris"
    sampler.close()
    runtime.close()
    runtime.close()


def test_the_cache_takes_the_bytes_that_were_announced(tiny_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "server.llama.native")
    runtime = open_runtime(_open(tiny_file, ctx_size=8192, parallel=4), lambda stage, fraction: None)
    cells = 8192 * 2 * (32 + 32) * 2  # layers, K and V values, bytes
    assert runtime.info.kv_bytes == cells + 4 * 4 * 320
    (line,) = [record.getMessage() for record in caplog.records if "KV buffer size" in record.getMessage()]
    assert f"{cells / 2**20:.2f} MiB" in line
    runtime.close()


def test_deterministic_means_a_q8_0_cache(tiny_file: Path) -> None:
    runtime = open_runtime(_open(tiny_file, ctx_size=1024, deterministic=True), lambda stage, fraction: None)
    assert (runtime.info.kv_type_k, runtime.info.kv_type_v, runtime.info.deterministic) == ("q8_0", "q8_0", True)
    runtime.close()


def test_one_pool_has_more_slots_than_requests_run(tiny_file: Path) -> None:
    runtime = open_runtime(_open(tiny_file, ctx_size=8192, parallel=2, kv="unified"), lambda stage, fraction: None)
    info, decoder = runtime.info, runtime.decoder
    assert (info.kv_unified, info.n_slots, info.n_ctx, info.n_ctx_slot) == (True, 2, 8192, 4096)
    assert (decoder.unified, decoder.n_slots, decoder.n_cells, decoder.n_ctx_slot) == (True, 34, 8192, 4096)
    assert not info.deterministic and info.can_rewind
    runtime.close()


def test_deterministic_goes_before_a_pool(tiny_file: Path) -> None:
    runtime = open_runtime(_open(tiny_file, kv="auto", ctx_size=1024, parallel=4, deterministic=True), lambda stage, fraction: None)
    assert (runtime.info.kv_unified, runtime.info.deterministic, runtime.info.n_slots) == (False, True, 4)
    runtime.close()


def test_a_model_that_cannot_rewind_says_so_and_is_not_guessed_for(
    tiny_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny.write_recurrent(tmp_path / "mamba.gguf")
    runtime = open_runtime(_open(path, ctx_size=1024, draft_path=str(tiny_file)), lambda stage, fraction: None)
    assert (runtime.info.can_rewind, runtime.info.spec, runtime.draft) == (False, "off", None)
    assert any("is not used" in record.getMessage() for record in caplog.records)
    runtime.close()


def test_memory_for_prefixes_is_chosen_from_what_weights_and_cache_leave(tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cache_ram(free: int, **settings: Any) -> int:
        monkeypatch.setattr("server.llama.hardware.free_memory", lambda: free)
        runtime = open_runtime(_open(tiny_file, ctx_size=1024, **settings), lambda stage, fraction: None)
        runtime.close()
        return runtime.info.cache_ram

    small, large = cache_ram(1 << 30), cache_ram(3 << 30)
    assert (200 << 20) < small < (256 << 20) and large - small == (2 << 30) // 4
    assert cache_ram(1 << 40) == 8 << 30
    assert [cache_ram(1 << 30, cache_ram=asked) for asked in (0, 12345)] == [0, 12345]


def test_the_cells_that_a_tiny_context_is_rounded_up_to_are_said(tiny_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runtime = open_runtime(_open(tiny_file, ctx_size=1), lambda stage, fraction: None)
    assert (runtime.info.n_ctx, runtime.info.n_ctx_slot, runtime.info.n_slots) == (256, 256, 4)
    assert any("1 cells were asked for" in record.getMessage() for record in caplog.records)
    runtime.close()


def test_slots_and_context_are_chosen_where_nothing_is_asked(tiny_file: Path) -> None:
    runtime = open_runtime(_open(tiny_file), lambda stage, fraction: None)
    assert runtime.info.n_slots == 16 and runtime.info.n_ctx_slot == 4096
    assert runtime.decoder.max_output_rows >= runtime.decoder.n_slots
    runtime.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache_type_k": "q9"}, '"q9" is no type'),
        ({"ctx_size": 2**40, "parallel": 256, "cache_type_v": "f32"}, "slots of 4096 tokens"),
        ({"parallel": 1000}, "1000 slots are not possible"),
        ({"offset": 10**12}, "too short"),
    ],
)
def test_mistakes_are_one_sentence(tiny_file: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str) -> None:
    monkeypatch.setattr("server.llama.hardware.free_memory", lambda: 256 << 20)
    with pytest.raises(OperatorError, match=message):
        open_runtime(_open(tiny_file, **settings), lambda stage, fraction: None)


def test_an_unknown_device_and_cpu_library_name_what_there_is(tiny_file: Path) -> None:
    loaded()
    wrong_device = RunnerSettings(path=str(tiny_file), device="Vulkan9", cpu_variant=cpu_choice().name)
    wrong_cpu = RunnerSettings(path=str(tiny_file), cpu_variant="486")
    for settings, hint in ((wrong_device, "none, auto"), (wrong_cpu, cpu_choice().name)):
        with pytest.raises(OperatorError) as caught:
            open_runtime(settings, lambda stage, fraction: None)
        assert hint in caught.value.hint


def test_cache_types_are_known_by_ggml_under_their_names() -> None:
    loaded()
    name = ggml().function("ggml_type_name", ctypes.c_char_p, ctypes.c_int)
    size = ggml().function("ggml_type_size", ctypes.c_size_t, ctypes.c_int)
    block = ggml().function("ggml_blck_size", ctypes.c_int64, ctypes.c_int)
    for known, (number, per_value) in KV_TYPES.items():
        assert name(number).decode() == known and size(number) / block(number) == per_value
    assert kv_type("Q8_0") == "q8_0"
