"""`inspect` tells what is inside, as text and as the same facts in JSON; nothing hostile reaches the terminal; damage is exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.bundle import PayloadSource
from server.commands import inspect
from server.errors import OperatorError
from tests import capsule_kit as kit

ROOT = Path(__file__).resolve().parents[3]


def _text(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    assert inspect.main([str(argument) for argument in argv]) == 0
    return capsys.readouterr().out


def _json(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(_text(capsys, *argv, "--json"))
    return report


def _capsule(tmp_path: Path, **changes: Any) -> Path:
    payloads = [
        PayloadSource("tiny.gguf", "model", kit.gguf()),
        PayloadSource("args.txt", "args", b"--top-k 3"),
        PayloadSource("t.jinja", "chat_template", b"{{ own }}"),
    ]
    return kit.capsule(tmp_path / "model.exe", changes.pop("payloads", payloads), **changes)


def test_a_gguf_file(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = _json(capsys, smollm2)
    model = report["model"]
    assert report["kind"] == "gguf" and report["size"] == smollm2.stat().st_size
    assert (model["architecture"], model["parameters"], model["quantisation"]) == ("llama", 134_515_008, "Q4_1")
    assert (model["context_length"], model["licence"], model["layers"]) == (8192, "apache-2.0", 30)
    assert "<|im_start|>" in model["chat_template"]
    text = _text(capsys, smollm2, "--verify")
    for word in ("134,515,008", "Q4_1", "8,192 tokens", "apache-2.0", "llama", "carries no checksums"):
        assert word in text


def test_a_capsule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _capsule(tmp_path, meta={"capsule": "1.2.3", "versions": {"llama-cpp-python": "0.3.36", "pyinstaller": "6.22.3"}})
    report = _json(capsys, path)
    assert [p["kind"] for p in report["payloads"]] == ["model", "args", "chat_template"]
    assert report["versions"] == {"capsule": "1.2.3", "python": "3.11", "llama-cpp-python": "0.3.36", "pyinstaller": "6.22.3"}
    assert (report["kind"], report["platform"], report["arguments"]) == ("capsule", "linux-x86_64", "--top-k 3")
    assert report["model"]["chat_template"] == "{{ messages }}" and report["chat_template"] == "{{ own }}"
    text = _text(capsys, path, "--verify")
    for word in ("1.2.3", "0.3.36", "6.22.3", "3.11", "linux-x86_64", "tiny.gguf", "--top-k 3", "Tiny", report["payloads"][0]["sha256"]):
        assert word in text
    assert "sha256 of all payloads are right" in text


def test_a_draft_model_is_shown_beside_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = kit.gguf({**kit.METADATA, "general.name": "Small"})
    path = _capsule(tmp_path, payloads=[PayloadSource("m", "model", kit.gguf()), PayloadSource("s.gguf", "draft", small)])
    report = _json(capsys, path)
    assert (report["model"]["name"], report["draft"]["name"]) == ("Tiny", "Small")
    text = _text(capsys, path)
    assert "s.gguf" in text and "\ndraft\n" in text and "Small" in text


def test_the_running_file_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OperatorError, match="no executable to look into"):
        inspect.main([])
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(_capsule(tmp_path)))
    assert _json(capsys)["model"]["name"] == "Tiny"


def test_a_runtime_and_the_weights_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _capsule(tmp_path, payloads=[])
    report = _json(capsys, path)
    assert report["kind"] == "runtime" and "model" not in report
    kit.write(tmp_path / "model.gguf", kit.gguf())
    report = _json(capsys, path)
    assert report["model"]["name"] == "Tiny" and report["beside"] == str(tmp_path / "model.gguf")
    assert "model (beside it: model.gguf)" in _text(capsys, path)


def test_parts_of_a_split_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for i in (0, 1):
        metadata = {**(kit.METADATA if i == 0 else {}), "split.no": i, "split.count": 2}
        paths.append(kit.write(tmp_path / f"s-0000{i + 1}-of-00002.gguf", kit.gguf(metadata, [(f"t{i}", (8,), 0)])))
    assert _json(capsys, paths[0])["model"]["split"] == {"part": 1, "parts": 2, "files": [str(path) for path in paths]}
    assert _json(capsys, paths[1])["model"]["split"]["part"] == 2
    assert "part 2 of 2" in _text(capsys, paths[1])


def test_nothing_hostile_reaches_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;x\x07\r\u202e\x9b31m\n"
    keys = ("general.name", "general.license", "general.architecture", "tokenizer.chat_template")
    model = PayloadSource(evil, "model", kit.gguf(kit.METADATA | dict.fromkeys(keys, evil)))
    payloads = [model, PayloadSource(evil, evil, b"x"), PayloadSource("a", "args", evil.encode())]
    path = _capsule(tmp_path, payloads=payloads, meta={"capsule": evil, "versions": {evil: evil, "nested": {evil: [evil]}}})
    named = path.rename(tmp_path / f"{evil.replace('/', '')}.exe")
    for argv in ([named], [named, "--json"], [named, "--verify"]):
        out = _text(capsys, *argv)
        assert all(c.isprintable() or c == "\n" for c in out)
    report = _json(capsys, named)
    assert report["model"]["name"] == evil and report["versions"][evil] == evil, "in JSON the facts themselves survive"


def test_damage_is_named_and_the_exit_code_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _capsule(tmp_path)
    place = _json(capsys, path)["payloads"][0]["offset"]
    content = bytearray(path.read_bytes())
    content[place + len(kit.gguf()) - 1] ^= 1
    path.write_bytes(content)
    assert inspect.main([str(path)]) == 0
    capsys.readouterr()
    assert inspect.main([str(path), "--verify"]) == 2
    assert "model tiny.gguf is damaged" in capsys.readouterr().err
    assert inspect.main([str(path), "--verify", "--json"]) == 2
    assert "is damaged" in json.loads(capsys.readouterr().out)["verify"][0]


def test_through_the_launcher_every_bad_file_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    whole = _capsule(tmp_path).read_bytes()
    bad = {
        "missing": None,
        "empty": b"",
        "text": b"hello",
        "cut.gguf": kit.gguf()[:-90],
        "cut.exe": whole[:-1],
        "half.exe": whole[: len(whole) // 2],
        "footer.exe": whole.replace(b"CAPSULE\x1a\x01", b"CAPSULE\x1a\x09"),
        "table.exe": whole.replace(b'"kind":"model"', b'"kind":"mode|"'),
    }
    for name, content in bad.items():
        if content is not None:
            kit.write(tmp_path / name, content)
        command = [sys.executable, "launcher.py", "inspect", str(tmp_path / name)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 2, (name, done)
        assert "Traceback" not in done.stderr and name in done.stderr and done.stdout == ""
