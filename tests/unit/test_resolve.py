"""Which weights a start uses: the file named, else those inside, else those beside the program; every dead end tells the ways out."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.resolve import Weights, default_cache_dir, fetch, resolve
from server.bundle import PayloadSource
from server.errors import OperatorError
from tests import capsule_kit as kit

TINY = PayloadSource("tiny.gguf", "model", kit.gguf())
ARGS = PayloadSource("args.txt", "args", b"--top-k 3 --alias 'my model'")
TEMPLATE = PayloadSource("t.jinja", "chat_template", b"{{ own }}")


def _resolve(model: Path | None = None, executable: Path | None = None, cache: Path = Path("/nonexistent")) -> Weights:
    return resolve(str(model) if model else None, executable=executable, cache_dir=cache)


def _named(name: str) -> bytes:
    return kit.gguf({**kit.METADATA, "general.name": name})


def test_inside_the_program(tmp_path: Path) -> None:
    own = kit.capsule(tmp_path / "model.exe", [TINY, ARGS, TEMPLATE])
    found = _resolve(executable=own)
    assert found.path == own and own.read_bytes()[found.offset : found.offset + found.size] == kit.gguf()
    assert found.name == "Tiny" and found.args == ["--top-k", "3", "--alias", "my model"]
    assert found.chat_template == "{{ own }}" and found.facts.chat_template == "{{ messages }}" and found.bundle is not None


def test_a_named_file_comes_first(tmp_path: Path) -> None:
    own = kit.capsule(tmp_path / "model.exe", [TINY, ARGS, TEMPLATE])
    other = kit.write(tmp_path / "größe 模型.gguf", _named(""))
    found = _resolve(other, own)
    assert (found.path, found.offset, found.size) == (other, 0, other.stat().st_size)
    assert found.name == "größe 模型" and found.args == [] and found.chat_template is None and found.bundle is None


def test_another_capsule_gives_weights_and_template_and_no_arguments(tmp_path: Path) -> None:
    own = kit.capsule(tmp_path / "model.exe", [TINY])
    other = kit.capsule(tmp_path / "other.exe", [PayloadSource("o.gguf", "model", _named("Other")), ARGS, TEMPLATE])
    found = _resolve(other, own)
    assert found.name == "Other" and found.chat_template == "{{ own }}" and found.args == [] and found.path == other


def test_relative_names_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.write(tmp_path / "w.gguf", kit.gguf())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _resolve(Path("w.gguf")).path == _resolve(Path("~/w.gguf")).path == tmp_path / "w.gguf"


def test_the_first_part_of_a_split_model(tmp_path: Path) -> None:
    for i in (0, 1):
        metadata = {**(kit.METADATA if i == 0 else {}), "split.no": i, "split.count": 2, "split.tensors.count": 2}
        kit.write(tmp_path / f"s-0000{i + 1}-of-00002.gguf", kit.gguf(metadata, [(f"t{i}", (8,), 0)]))
    found = _resolve(tmp_path / "s-00001-of-00002.gguf")
    assert found.facts.n_params == 16 and [p.name for p in found.facts.parts] == ["s-00001-of-00002.gguf", "s-00002-of-00002.gguf"]


@pytest.mark.parametrize("program", ["other.exe", "Other.EXE", "other", "my.model-1.5"])
def test_beside_the_program(tmp_path: Path, program: str) -> None:
    own = kit.capsule(tmp_path / program, [ARGS, TEMPLATE])
    stem = program[:-4] if program.lower().endswith(".exe") else program
    kit.write(tmp_path / "model.gguf", _named("Fallback"))
    found = _resolve(executable=own)
    assert found.name == "Fallback" and found.args[:2] == ["--top-k", "3"]
    assert found.chat_template == "{{ own }}" and found.bundle is not None
    kit.write(tmp_path / f"{stem}.gguf", _named("Namesake"))
    assert _resolve(executable=own).name == "Namesake"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "link").symlink_to(own)
    assert _resolve(executable=tmp_path / "bin" / "link").name == "Namesake"


def test_a_program_without_a_table_finds_its_neighbour(tmp_path: Path) -> None:
    own = kit.write(tmp_path / "plain.exe", kit.ELF_HEAD + kit.archive())
    kit.write(tmp_path / "plain.gguf", kit.gguf())
    assert _resolve(executable=own).name == "Tiny"


def test_from_source_the_cached_default_is_used(tmp_path: Path, smollm2: Path) -> None:
    assert _resolve(cache=default_cache_dir()).path == smollm2
    with pytest.raises(OperatorError) as caught:
        _resolve(cache=tmp_path)
    assert "make run" in caught.value.hint and fetch is not None


def test_dead_ends_tell_the_ways_out(tmp_path: Path) -> None:
    own = kit.capsule(tmp_path / "model.exe")
    with pytest.raises(OperatorError, match="no weights inside model.exe") as caught:
        _resolve(executable=own)
    assert "-m FILE.gguf" in caught.value.hint and "bundle" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "neither a GGUF file nor a capsule"),
        (b"#!/bin/sh\n", "neither a GGUF file nor a capsule"),
        (kit.ELF_HEAD, "not a capsule, or one that is cut short"),
        (kit.gguf()[:-80], "cut short"),
        (kit.gguf({**kit.METADATA, "general.type": "adapter"}), r"not a model \(adapter\)"),
        (kit.gguf({"general.name": "x"}), "not a model"),
        (kit.gguf(tensors=[]), "without any weights"),
    ],
)
def test_bad_files_are_one_sentence_with_their_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = kit.write(tmp_path / "bad\x1b[31m\n.gguf", content)
    with pytest.raises(OperatorError, match=words) as caught:
        _resolve(path)
    assert caught.value.message.isprintable() and r"bad\x1b[31m\n.gguf" in caught.value.message


def test_bad_capsules_are_one_sentence(tmp_path: Path) -> None:
    broken = kit.capsule(tmp_path / "broken.exe", [PayloadSource("m", "model", kit.gguf()[:-80])])
    part = kit.capsule(tmp_path / "part.exe", [PayloadSource("m", "model", kit.gguf({**kit.METADATA, "split.count": 2}))])
    cheeky = kit.capsule(tmp_path / "cheeky.exe", [TINY, PayloadSource("a", "args", b"--host 0.0.0.0")])
    binary = kit.capsule(tmp_path / "binary.exe", [TINY, PayloadSource("a", "args", b"\xff\xfe")])
    empty = kit.capsule(tmp_path / "empty.exe")
    for path, words in (
        (broken, "the model inside .* is not a usable GGUF"),
        (part, "one part of a model split into 2"),
        (cheeky, "--host cannot be set by a file"),
        (binary, "not UTF-8"),
    ):
        with pytest.raises(OperatorError, match=words):
            _resolve(executable=path)
    with pytest.raises(OperatorError, match="capsule without weights"):
        _resolve(empty)
    assert _resolve(cheeky).args == []


def test_a_hostile_name_is_made_safe(tmp_path: Path) -> None:
    path = kit.write(tmp_path / "x.gguf", _named("\x1b]0;gotcha\x07 \n name" + "x" * 1000))
    assert _resolve(path).name.isprintable() and len(_resolve(path).name) == 200
