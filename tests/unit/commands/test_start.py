"""What the runner is told follows from the settings and the weights, whichever source a setting came from."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from models.resolve import Weights
from server.bundle import Bundle, PayloadSource
from server.commands import start as module
from server.commands.serve import _End
from server.commands.start import Start, prepare, read_options
from server.errors import OperatorError
from server.lifecycle import extraction
from server.lifecycle.instance import Registration
from server.lifecycle.stop import Stopper
from tests import capsule_kit as kit


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("CAPSULE_CACHE_DIR", str(tmp_path / "cache"))

    def begun(*argv: str, args: tuple[str, ...] = (), template: str | None = None, bundle: Bundle | None = None) -> Start:
        weights = Weights(tmp_path / "m.gguf", 65536, 100, "named", bundle, template, list(args), cast(Any, None))
        monkeypatch.setattr(module, "resolve", lambda model, *, executable, cache_dir: weights)
        return prepare(read_options(argv, {}), argv, {})

    return begun


def test_the_runner_is_told_where_the_weights_lie(begin: Any, tmp_path: Path) -> None:
    told = begin().runner
    assert (told.path, told.offset, told.size) == (str(tmp_path / "m.gguf"), 65536, 100)
    assert told.cache_dir == str(tmp_path / "cache")
    assert begin().model_name == "named" and begin("--alias", "other").model_name == "other"


def test_arguments_of_the_file_apply_below_flags(begin: Any) -> None:
    begun = begin("-np", "3", args=("--parallel", "7", "--ctx-size", "4096"))
    assert (begun.runner.parallel, begun.runner.ctx_size) == (3, 4096)
    assert begun.options.origins["ctx_size"] == "embedded" and begun.options.origins["parallel"] == "flag"
    with pytest.raises(OperatorError, match="--host"):
        begin(args=("--host", "0.0.0.0"))
    with pytest.raises(OperatorError, match="--temp"):
        begin(args=("--temp", "-1"))


def test_deterministic_means_q8_0_and_a_micro_batch_fits_its_batch(begin: Any) -> None:
    told = begin("--deterministic").runner
    assert (told.deterministic, told.cache_type_k, told.cache_type_v) == (True, "q8_0", "q8_0")
    assert begin("-b", "64").runner.ubatch_size == 64
    assert begin("-ctk", "q4_0").runner.cache_type_k == "q4_0"


def test_the_draft_model_is_the_one_named_else_the_one_beside_the_weights(begin: Any, tmp_path: Path) -> None:
    def told(*argv: str, **more: Any) -> tuple[str | None, int, int]:
        runner = begin(*argv, **more).runner
        return runner.draft_path, runner.draft_offset, runner.draft_size

    small = kit.write(tmp_path / "small.gguf", kit.gguf())
    payloads = [PayloadSource("m.gguf", "model", kit.gguf()), PayloadSource("d.gguf", "draft", kit.gguf())]
    path = kit.capsule(tmp_path / "both.exe", payloads)
    both = Bundle.open(path)
    assert both is not None
    inside, named = both.payloads[1], (str(small), 0, small.stat().st_size)
    assert told() == told("--spec", "ngram", bundle=both) == told("--spec", "off", bundle=both) == (None, 0, 0)
    assert told("-md", str(small)) == told("-md", str(small), "--spec", "draft", bundle=both) == named
    assert told(bundle=both) == told("--spec", "draft", bundle=both) == (str(path), inside.offset, inside.size)
    assert told("-md", str(path)) == (str(path), both.payloads[0].offset, both.payloads[0].size), "a capsule named gives its weights"
    with pytest.raises(OperatorError, match="--spec draft needs a draft model"):
        begin("--spec", "draft")
    with pytest.raises(OperatorError, match="nowhere"):
        begin("-md", str(tmp_path / "nowhere.gguf"))
    with pytest.raises(OperatorError, match="neither a GGUF"):
        begin("-md", str(kit.write(tmp_path / "text", b"text")))


def test_the_nearest_chat_template_wins(begin: Any, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("\ufefffrom a file: {{ messages }}", encoding="utf-8")
    flag, embedded = ("--chat-template", "flag: {{ messages }}"), ("--chat-template", "embedded: {{ messages }}")
    assert begin().template is None
    assert begin(template="laid in").template == "laid in"
    assert begin(template="laid in", args=embedded).template == embedded[1]
    assert begin(*flag, template="laid in", args=embedded).template == flag[1]
    assert begin("--chat-template-file", str(file), args=embedded).template == "from a file: {{ messages }}"


@pytest.mark.parametrize("source", ["chatml", "{% for", "{{ messages", ""], ids=["a name", "half a tag", "half a value", "empty"])
def test_a_template_that_could_never_work_is_said_at_the_start(begin: Any, tmp_path: Path, source: str) -> None:
    with pytest.raises(OperatorError, match="--chat-template"):
        begin("--chat-template", source)
    file = tmp_path / "t.jinja"
    file.write_text(source)
    with pytest.raises(OperatorError, match=r"--chat-template-file.*t\.jinja"):
        begin("--chat-template-file", str(file))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (1 << 21)], ids=["not text", "too long"])
def test_a_bad_template_file_is_named(begin: Any, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "t.jinja"
    file.write_bytes(content)
    with pytest.raises(OperatorError, match="--chat-template-file"):
        begin("--chat-template-file", str(file))


def test_an_orphan_removes_its_directory_once_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(extraction, "remove_own", lambda: steps.append("removed"))
    monkeypatch.setattr("server.commands.serve._GRACE_S", 0.0)
    registration = Registration(tmp_path, "x")
    registration.claim()
    stopper = Stopper()
    end = _End(registration, exit=lambda code: steps.append(f"exit {code}"))
    end.last_step()
    assert steps == [], "with a living parent, that one cleans up"
    thread = threading.Thread(target=end.parent_lost, args=(stopper,))
    thread.start()
    thread.join(10)
    assert stopper.wanted and not stopper.patient
    assert steps == ["removed", "exit 0"]
    end.now()
    assert steps[-1] == "exit 0" and Registration(tmp_path, "x").claim()
