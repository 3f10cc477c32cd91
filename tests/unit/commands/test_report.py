"""The lines of a start are true for every kind of address, and nothing in them can steer the terminal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from server.commands import report
from server.commands.report import model_lines, url_lines
from server.lifecycle.listen import Listening
from server.protocol import ModelInfo
from tests.unit.commands.scripted import start

INFO = ModelInfo(
    name="m", architecture="llama", description="", n_params=134_515_008, size=96_000_000, ftype="Q4_1", n_vocab=1, vocab_type=0,
    n_embd=1, n_ctx_train=8192, n_ctx=16384, n_ctx_slot=4096, n_slots=4, chat_template=None, bos_token="", eos_token="", add_bos=False,
    cpu_variant="zen4", cpu_variant_reason="best that works", devices=(), n_layers=30, n_gpu_layers=0, n_threads=2, kv_type_k="f16",
    kv_type_v="f16", kv_bytes=2**30, deterministic=False, load_seconds=1.25, pid=1,
)  # fmt: skip


def _urls(home: Path, *flags: str, moved: str = "") -> str:
    return "\n".join(url_lines(start("ok", home, list(flags)), Listening((), 8081, "127.0.0.1", moved)))


def test_loopback_says_that_it_is(tmp_path: Path) -> None:
    text = _urls(tmp_path)
    assert "http://127.0.0.1:8081/ " in text and "http://127.0.0.1:8081/v1" in text and "this machine only" in text


def test_a_moved_port_is_said_plainly(tmp_path: Path) -> None:
    assert "port 8080 is taken, so this is port 8081" in _urls(tmp_path, moved="port 8080 is taken")


def test_shared_addresses_and_the_made_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "lan_addresses", lambda: ["192.168.1.7", "fd00::7"])
    text = _urls(tmp_path, "--share")
    assert "http://192.168.1.7:8081/" in text and "fd00" not in text and "sk-" in text and "this machine only" not in text
    given = _urls(tmp_path, "--share", "--api-key", "hunter2")
    assert "hunter2" not in given
    open_house = _urls(tmp_path, "--host", "0.0.0.0", "--no-auth")
    assert "anybody" in open_house
    single = _urls(tmp_path, "--host", "10.0.0.9", "--api-key", "k")
    assert "http://10.0.0.9:8081/v1" in single and "192.168" not in single


def test_the_model_and_what_it_runs_on(tmp_path: Path) -> None:
    begun = start("ok", tmp_path, [])
    text = "\n".join(model_lines(begun, INFO))
    for words in (
        "fake (llama, 134.5M parameters, Q4_1, 92 MiB)",
        "4, each with 4,096 tokens",
        "16,384 in all",
        "zen4, 2 threads",
        "best that works",
    ):
        assert words in text, text
    assert "CPU only" in text and "1.2 s" in text
    placed = msgspec.structs.replace(INFO, devices=("Vulkan0",), n_gpu_layers=99, n_ctx_slot=10_000)
    text = "\n".join(model_lines(begun, placed))
    assert "Vulkan0: 30 of 30 layers" in text and "trained for 8,192" in text


def test_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    begun = start("ok", tmp_path, ["--alias", "a\x1b[2J"])
    assert "\x1b" not in "\n".join(model_lines(begun, msgspec.structs.replace(INFO, architecture="x\x1b]0;")))
