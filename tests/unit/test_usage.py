"""The help is readable at 80 columns, names every flag, and shows where a value comes from."""

from __future__ import annotations

from server.options import table
from server.usage import WIDTH, help_text


def test_width_and_completeness() -> None:
    text = help_text("model.exe", "1.2.3", {})
    assert max(map(len, text.splitlines())) <= WIDTH
    for option in table():
        assert all(flag in text for flag in option.flags), option.name
    for word in ("serve", "chat", "bundle", "inspect", "--version", "--licenses", "--no-browser", "1.2.3"):
        assert word in text
    assert "runner" not in text.split("Model")[0]


def test_origins_are_shown_and_secrets_are_not() -> None:
    flat = " ".join(help_text("model.exe", "1", {"CAPSULE_CTX_SIZE": "8192", "CAPSULE_API_KEY": "hunter2"}, ["--temp", "0.25"]).split())
    assert "[8192, from CAPSULE_CTX_SIZE]" in flat
    assert "[0.25, from inside this file]" in flat
    assert "[set, from CAPSULE_API_KEY]" in flat and "hunter2" not in flat
    assert "[40]" in flat


def test_a_broken_environment_does_not_break_the_help() -> None:
    text = help_text("model.exe", "1", {"CAPSULE_PORT": "x"})
    assert "--port" in text and "CAPSULE_PORT" in text
