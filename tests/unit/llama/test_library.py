"""Native messages become whole log records, and a failure keeps its first cause."""

from __future__ import annotations

import logging

import pytest

from server.llama.library import Messages, reason

LOGGER = "server.llama.native"


def _lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == LOGGER]


def test_lines_are_put_together_from_fragments(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    messages = Messages()
    for level, text in [(2, b"one\ntw"), (5, b"o\n"), (4, b"bad "), (5, b"news\n"), (5, b"..."), (5, b".\n"), (3, b""), (2, None)]:
        messages._receive(level, text, None)
    assert _lines(caplog) == [("DEBUG", "one"), ("DEBUG", "two"), ("WARNING", "bad news"), ("WARNING", "....")]


def test_collected_errors_are_kept_and_not_reported_twice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    messages = Messages()
    messages._receive(4, b"from before\n", None)
    with messages.collect() as lines:
        messages._receive(4, b"first\n", None)
        messages._receive(2, b"by the way\n", None)
        messages._receive(4, b"second \xff\n", None)
    assert lines == ["first", "second \ufffd"]
    assert [level for level, text in _lines(caplog) if text in ("first", "second \ufffd")] == ["DEBUG", "DEBUG"]


def test_a_native_message_without_end_does_not_grow_for_ever() -> None:
    messages = Messages()
    for _ in range(1000):
        messages._receive(5, b"x" * 1000, None)
    assert len(messages._text) <= 65536


def test_only_the_latest_errors_are_kept() -> None:
    messages = Messages()
    for index in range(1000):
        messages._receive(4, f"error {index}\n".encode(), None)
    assert len(messages.errors) == 32 and messages.errors[-1] == "error 999"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["gguf_init_from_reader: invalid magic characters: 'x', expected 'GGUF'", "llama_model_load: error loading model: y"],
         "invalid magic characters: 'x', expected 'GGUF'"),
        (["llama_model_load: error loading model: missing tensor 'a.b'", "llama_model_load_from_file_impl: failed to load model"],
         "missing tensor 'a.b'"),
        (["llama_model_load: error loading model: llama_model_loader: failed to load model from /x"], ""),
        (["llama_init_from_model: V cache quantization requires flash_attn"], "V cache quantization requires flash_attn"),
        (["", "  "], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_the_reason_is_the_first_cause(lines: list[str], expected: str) -> None:
    assert reason(lines) == expected
