"""`bundle`: weights, arguments and templates are checked before a byte is written, and what is written is found again by `resolve`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from models.resolve import resolve
from server import executable, macho
from server.bundle import Bundle, PayloadSource
from server.commands import arguments, bundle
from server.errors import OperatorError
from tests import capsule_kit as kit

MACHO_HEAD = b"\xcf\xfa\xed\xfe\x0c\0\0\1" + bytes(2000)
NOTICES = PayloadSource("notices.txt", "licences", b"MIT")


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """A capsule that already carries another model with all that belongs to it."""
    old = [PayloadSource("old.gguf", "model", kit.gguf()), PayloadSource("args.txt", "args", b"--seed 9"), NOTICES]
    return kit.capsule(tmp_path / "runtime.exe", [*old, PayloadSource("t", "chat_template", b"old")])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return kit.write(tmp_path / "other.gguf", kit.gguf({**kit.METADATA, "general.name": "Other"}))


def _run(*argv: str | Path) -> None:
    assert bundle.main([str(argument) for argument in argv]) == 0


def _refused(words: str, *argv: str | Path, output: Path) -> OperatorError:
    with pytest.raises(OperatorError, match=words) as caught:
        bundle.main([*(str(argument) for argument in argv), "-o", str(output)])
    assert not output.exists() and not list(output.parent.glob(".capsule-*"))
    return caught.value


def test_exchanges_the_model_and_what_belongs_to_it(
    runtime: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "größe new.exe"
    _run(weights, "-o", output, "--runtime", runtime)
    made, old = Bundle.open(output), Bundle.open(runtime)
    assert made is not None and old is not None
    assert [(p.kind, p.name) for p in made.payloads] == [("model", "other.gguf"), ("licences", "notices.txt")]
    assert made.verify() == [] and made.meta == old.meta and made.archive_sha256 == old.archive_sha256
    assert os.access(output, os.X_OK) and resolve(None, executable=output, cache_dir=tmp_path).name == "Other"
    assert "größe new.exe: Other (llama" in capsys.readouterr().out


def test_arguments_template_and_draft_are_laid_in(runtime: Path, weights: Path, tmp_path: Path) -> None:
    template = kit.write(tmp_path / "t.jinja", "{% for m in messages %}{{ m.content }}ü{% endfor %}".encode())
    draft = kit.write(tmp_path / "draft.gguf", kit.gguf())
    output = tmp_path / "new.exe"
    extras = ("--args", "--alias 'my parrot' --temp 0", "--chat-template", template, "--draft", draft)
    _run(weights, "-o", output, "--runtime", runtime, *extras)
    found = resolve(None, executable=output, cache_dir=tmp_path)
    assert found.args == ["--alias", "my parrot", "--temp", "0"] and found.chat_template == template.read_text(encoding="utf-8")
    assert found.bundle is not None and found.bundle.payload("draft") is not None and found.bundle.verify() == []


def test_a_draft_goes_with_the_weights_of_another_capsule(runtime: Path, weights: Path, tmp_path: Path) -> None:
    """Unless another one is named; its vocabulary may be padded otherwise, as models of one family are."""
    tokens = [*kit.METADATA["tokenizer.ggml.tokens"], "padding"]
    draft = kit.write(tmp_path / "draft.gguf", kit.gguf({**kit.METADATA, "tokenizer.ggml.tokens": tokens}))
    first, second, third = (tmp_path / f"{name}.exe" for name in ("first", "second", "third"))
    _run(weights, "-o", first, "--runtime", runtime, "--draft", draft)
    _run(first, "-o", second, "--runtime", runtime)
    _run(first, "-o", third, "--runtime", runtime, "--draft", kit.write(tmp_path / "other draft.gguf", kit.gguf()))
    for path, name in ((second, "draft.gguf"), (third, "other draft.gguf")):
        made = Bundle.open(path)
        assert made is not None and made.verify() == []
        assert [payload.name for payload in made.payloads if payload.kind == "draft"] == [name]


@pytest.mark.parametrize("spelling", [["--args", "--deterministic"], ["--args=--deterministic"]])
def test_a_single_flag_as_argument(runtime: Path, weights: Path, tmp_path: Path, spelling: list[str]) -> None:
    _run(weights, "-o", tmp_path / "new.exe", "--runtime", runtime, *spelling)
    assert resolve(None, executable=tmp_path / "new.exe", cache_dir=tmp_path).args == ["--deterministic"]


def test_the_running_file_is_the_runtime(runtime: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "make build" in _refused("run from source", weights, output=tmp_path / "new.exe").hint
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(runtime))
    _run(weights, "-o", tmp_path / "new.exe")
    _run(tmp_path / "new.exe", "-o", runtime)  # onto itself: the old file lives on for those who have it open
    assert resolve(None, executable=runtime, cache_dir=tmp_path).name == "Other"


def test_the_weights_of_another_capsule(runtime: Path, tmp_path: Path) -> None:
    _run(runtime, "-o", tmp_path / "new.exe", "--runtime", runtime)
    found = resolve(None, executable=tmp_path / "new.exe", cache_dir=tmp_path)
    assert found.name == "Tiny" and found.chat_template == "old" and found.args == []


def test_bad_input_is_refused_before_anything_is_written(runtime: Path, weights: Path, tmp_path: Path) -> None:
    new, with_runtime = tmp_path / "new.exe", ("--runtime", runtime)
    junk = kit.write(tmp_path / "junk", b"\xff{{")
    _refused("does not exist", tmp_path / "missing.gguf", *with_runtime, output=new)
    _refused("neither a GGUF", junk, *with_runtime, output=new)
    _refused("cut short", kit.write(tmp_path / "cut.gguf", kit.gguf()[:-80]), *with_runtime, output=new)
    _refused("--host cannot be set by a file", weights, *with_runtime, "--args", "--host 0.0.0.0", output=new)
    _refused("--api-key cannot be set", weights, *with_runtime, "--args", "--top-k 1 --api-key=x", output=new)
    _refused("unknown flag --nonsense", weights, *with_runtime, "--args", "--nonsense", output=new)
    _refused("closing quotation", weights, *with_runtime, "--args", "--alias 'x", output=new)
    _refused("top-k.*'x' is not a whole number", weights, *with_runtime, "--args", "--top-k x", output=new)
    _refused("not UTF-8", weights, *with_runtime, "--chat-template", junk, output=new)
    _refused("is no chat template", weights, *with_runtime, "--chat-template", kit.write(tmp_path / "t", b"{% if %}"), output=new)
    _refused("same vocabulary", weights, *with_runtime, "--draft", kit.write(tmp_path / "d", kit.gguf(_without_tokens())), output=new)
    _refused("neither a GGUF", weights, *with_runtime, "--draft", junk, output=new)
    _refused("neither a GGUF", weights, "--runtime", junk, output=new)
    _refused("not a capsule", weights, "--runtime", "/bin/ls", output=new)
    _refused("is a directory", tmp_path, *with_runtime, output=new)
    _refused("unrecognized arguments", weights, "--bogus", output=new)
    with pytest.raises(OperatorError, match="required: -o"):
        bundle.main([str(weights)])
    with pytest.raises(OperatorError, match="is there already"):
        bundle.main([str(weights), "-o", str(weights), *map(str, with_runtime)])


def _without_tokens() -> dict[str, object]:
    return {key: value for key, value in kit.METADATA.items() if key != "tokenizer.ggml.tokens"}


def test_a_split_model_is_refused_with_the_way_out(runtime: Path, tmp_path: Path) -> None:
    for i in (0, 1):
        metadata = {**(kit.METADATA if i == 0 else {}), "split.no": i, "split.count": 2}
        kit.write(tmp_path / f"s-0000{i + 1}-of-00002.gguf", kit.gguf(metadata, [(f"t{i}", (8,), 0)]))
    error = _refused("split into 2 files", tmp_path / "s-00001-of-00002.gguf", "--runtime", runtime, output=tmp_path / "new.exe")
    assert "--merge" in error.hint


# ---- other systems ---------------------------------------------------------------------------------------------------


def test_a_windows_program_that_would_be_too_large_gets_its_weights_beside_it(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = kit.capsule(tmp_path / "windows.exe", [NOTICES], head=kit.PE_HEAD)
    _run(weights, "-o", tmp_path / "fits.exe", "--runtime", runtime)
    assert not (tmp_path / "fits.gguf").exists()
    monkeypatch.setattr(executable, "_LIMIT", (tmp_path / "fits.exe").stat().st_size)
    output = tmp_path / "out" / "Large.exe"
    output.parent.mkdir()
    _run(weights, "-o", output, "--runtime", runtime, "--args", "--temp 0")
    assert (output.parent / "Large.gguf").read_bytes() == weights.read_bytes()
    assert "keep both files together" in capsys.readouterr().out
    made = Bundle.open(output)
    assert made is not None and made.payload("model") is None and made.verify() == []
    assert not os.access(output.parent / "Large.gguf", os.X_OK)
    found = resolve(None, executable=output, cache_dir=tmp_path)
    assert found.name == "Other" and found.args == ["--temp", "0"]


def test_weights_that_lie_at_the_right_place_are_left_there(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = kit.capsule(tmp_path / "windows.exe", head=kit.PE_HEAD)
    monkeypatch.setattr(executable, "_LIMIT", 60_000)
    before = weights.stat()
    _run(weights, "-o", tmp_path / "other.exe", "--runtime", runtime)
    assert weights.stat().st_ino == before.st_ino and weights.stat().st_mtime_ns == before.st_mtime_ns
    assert resolve(None, executable=tmp_path / "other.exe", cache_dir=tmp_path).path == weights


def test_neither_file_is_left_if_the_program_cannot_be_written(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = kit.capsule(tmp_path / "windows.exe", head=kit.PE_HEAD)
    monkeypatch.setattr(executable, "_LIMIT", 1000)  # not even the runtime fits
    _refused("4 GiB or more", weights, "--runtime", runtime, output=tmp_path / "big.exe")
    assert not (tmp_path / "big.gguf").exists()


def test_a_macos_program_made_elsewhere_stays_as_it_is_signed(weights: Path, runtime: Path, tmp_path: Path) -> None:
    mac = kit.capsule(tmp_path / "mac", head=MACHO_HEAD)
    with open(mac, "ab") as file:
        file.write(b"signature")
    _run(weights, "-o", tmp_path / "new", "--runtime", mac)
    assert (tmp_path / "new").read_bytes() == mac.read_bytes() and os.access(tmp_path / "new", os.X_OK)
    assert resolve(None, executable=tmp_path / "new", cache_dir=tmp_path).path == tmp_path / "new.gguf"
    _refused("only on a Mac", weights, "--runtime", mac, "--args", "--temp 0", output=tmp_path / "x")
    full = kit.capsule(tmp_path / "full", [PayloadSource("m", "model", weights)], head=MACHO_HEAD)
    error = _refused("other weights only on a Mac", weights, "--runtime", full, output=tmp_path / "x")
    assert "without weights" in error.hint


def test_on_a_mac_the_program_is_signed_again(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed: list[str] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(macho, "sign", lambda path: signed.append(path.name))
    mac = kit.capsule(tmp_path / "mac", head=MACHO_HEAD)
    _run(weights, "-o", tmp_path / "new", "--runtime", mac, "--args", "--temp 0")
    assert len(signed) == 1 and signed[0].startswith(".capsule-"), "signed before it gets its name"
    assert resolve(None, executable=tmp_path / "new", cache_dir=tmp_path).args == ["--temp", "0"]


# ---- progress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_rare_lines_elsewhere(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(arguments, "is_terminal", lambda *streams: terminal)
    progress = arguments.ProgressLine("writing")
    for step in range(100):
        now[0] = step * 0.1
        progress(step, 100)
    progress.close()
    text = capsys.readouterr().err
    if terminal:
        assert "\r[###" in text and text.endswith("\r\x1b[K") and "\n" not in text
    else:
        assert text.splitlines() == ["writing  30% of 100 B", "writing  60% of 100 B", "writing  90% of 100 B"]
