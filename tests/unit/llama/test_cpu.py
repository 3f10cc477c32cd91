"""The verdict on CPU libraries: the best that works, remembered once per CPU and build, never trusted when it makes no sense."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.errors import OperatorError
from server.llama import cpu
from server.llama.cpu import choose_cpu

Program = Callable[[dict[str, tuple[int, str]]], list[str]]

# Plays the child: rates each path by its name, then tries them in order; a verdict "die" is acted out.
CHILD = """
import json, os, sys
facts, log = json.loads(sys.argv[1]), sys.argv[2]
open(log, "a").write("run\\n")
mode, paths = sys.argv[5], sys.argv[6:]
scores = {}
for entry in paths:
    path, has, score = entry.rpartition("=")
    path = path if has else entry
    name = os.path.basename(path)[len("libggml-cpu-"):-len(".so")]
    scores[path] = facts[name][0]
    print(json.dumps({"library": path, "score": facts[name][0]}), flush=True)
for path in sorted(scores, key=scores.get, reverse=True):
    name = os.path.basename(path)[len("libggml-cpu-"):-len(".so")]
    if scores[path]:
        print(json.dumps({"library": path, "step": "multiplying"}), flush=True)
        if facts[name][1] == "die":
            os.abort()
        print(json.dumps({"library": path, "verdict": facts[name][1]}), flush=True)
        if mode == "best" and not facts[name][1]:
            break
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    target = tmp_path / "lib"
    target.mkdir()
    for name in ("old", "plain", "fancy", "foreign"):
        (target / f"libggml-cpu-{name}.so").write_bytes(name.encode() * 10)
    return target


@pytest.fixture
def child(tmp_path: Path) -> Program:
    return lambda facts: [sys.executable, "-c", CHILD, json.dumps(facts), str(tmp_path / "runs")]


def _runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines()) if (tmp_path / "runs").exists() else 0


FACTS = {"old": (1, ""), "plain": (10, ""), "fancy": (100, "die"), "foreign": (0, "")}


def test_the_best_that_survives_is_chosen_and_the_log_says_why(directory: Path, child: Program, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    choice = choose_cpu(None, None, directory=directory, program=child(FACTS))
    assert choice.name == "plain" and choice.path == directory / "libggml-cpu-plain.so"
    assert choice.passed_over == (("fancy", "died of SIGABRT while multiplying"),)
    (line,) = [record.getMessage() for record in caplog.records if record.name == cpu.__name__]
    assert "plain" in line and "passed over fancy: died of SIGABRT while multiplying" in line


def test_a_wrong_result_is_a_reason_too(directory: Path, child: Program) -> None:
    facts = FACTS | {"fancy": (100, "the product came out wrong"), "plain": (10, "attention came out wrong")}
    choice = choose_cpu(None, None, directory=directory, program=child(facts))
    assert choice.name == "old" and [why for _, why in choice.passed_over] == ["the product came out wrong", "attention came out wrong"]


def test_the_verdict_is_remembered_for_us_alone(directory: Path, child: Program, tmp_path: Path) -> None:
    first = choose_cpu(tmp_path / "cache", None, directory=directory, program=child(FACTS))
    probes = _runs(tmp_path)
    assert probes == 2  # one died of `fancy`
    assert choose_cpu(tmp_path / "cache", None, directory=directory, program=child(FACTS)) == first
    assert _runs(tmp_path) == probes
    (cache,) = (tmp_path / "cache").iterdir()
    assert cache.name.startswith("cpu-") and cache.suffix == ".json"
    if sys.platform != "win32":
        assert stat.S_IMODE(cache.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"scores": 1, "verdicts": {}}', b'{"scores": {"plain": "x"}, "verdicts": {"plain": ""}}',
     b'{"scores": {"gone": 5}, "verdicts": {"gone": ""}}', b'{"scores": {"plain": [1]}, "verdicts": {}}'],
)  # fmt: skip
def test_a_corrupt_memory_is_probed_again(directory: Path, child: Program, tmp_path: Path, content: bytes) -> None:
    choose_cpu(tmp_path / "cache", None, directory=directory, program=child(FACTS))
    (cache,) = (tmp_path / "cache").iterdir()
    good = cache.read_bytes()
    cache.write_bytes(content)
    assert choose_cpu(tmp_path / "cache", None, directory=directory, program=child(FACTS)).name == "plain"
    assert _runs(tmp_path) == 4 and cache.read_bytes() == good


def test_another_cpu_or_build_is_another_memory(directory: Path, child: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_cpu(tmp_path / "cache", None, directory=directory, program=child(FACTS))
    monkeypatch.setattr(cpu, "cpu_identity", lambda: "another machine")
    choose_cpu(tmp_path / "cache", None, directory=directory, program=child(FACTS))
    (directory / "libggml-cpu-plain.so").write_bytes(b"a longer build of it" * 10)
    choose_cpu(tmp_path / "cache", None, directory=directory, program=child(FACTS))
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_an_unwritable_memory_is_no_obstacle(directory: Path, child: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert choose_cpu(tmp_path / "file" / "cache", None, directory=directory, program=child(FACTS)).name == "plain"


def test_a_requested_library_is_tried_all_the_same(directory: Path, child: Program, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    choice = choose_cpu(cache, "old", directory=directory, program=child(FACTS))
    assert choice.name == "old" and "--cpu-variant" in choice.reason
    assert _runs(tmp_path) == 1 and choose_cpu(cache, "old", directory=directory, program=child(FACTS)).name == "old"
    assert _runs(tmp_path) == 1, "remembered"
    with pytest.raises(OperatorError, match='"fancy" does not work here: died of SIGABRT'):
        choose_cpu(cache, "fancy", directory=directory, program=child(FACTS))
    with pytest.raises(OperatorError, match='"foreign" does not work here: it is not made for this CPU'):
        choose_cpu(cache, "foreign", directory=directory, program=child(FACTS))


def test_an_unknown_library_names_those_that_exist(directory: Path) -> None:
    with pytest.raises(OperatorError) as caught:
        choose_cpu(None, "haswel", directory=directory)
    assert caught.value.hint == "--cpu-variant takes one of: fancy, foreign, old, plain"


def test_nothing_that_works_is_an_error_with_every_reason(directory: Path, child: Program) -> None:
    facts: dict[str, Any] = {"old": (1, "wrong"), "plain": (10, "worse"), "fancy": (100, "die"), "foreign": (0, "")}
    with pytest.raises(OperatorError) as caught:
        choose_cpu(None, None, directory=directory, program=child(facts))
    assert all(text in caught.value.message for text in ("old: wrong", "plain: worse", "fancy: died of SIGABRT"))


def test_the_identity_of_the_cpu_is_stable_and_says_something() -> None:
    assert cpu.cpu_identity() == cpu.cpu_identity() and len(cpu.cpu_identity()) > 20
    assert os.uname().release in cpu.cpu_identity() if hasattr(os, "uname") else True
