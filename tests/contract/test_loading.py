"""Contract: weights are mapped where they lie, also in the middle of a file, and a failed load can say why."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from server.errors import OperatorError
from server.llama.context import Context
from server.llama.model import Model, load_model
from tests.native import context, logits, rows, run_python


def _inside(gguf: Path, target: Path, offset: int) -> Path:
    """The GGUF in the middle of a larger file."""
    with open(target, "wb") as file:
        file.write(b"\x7fELF" + b"h" * (offset - 4))
        with open(gguf, "rb") as source:
            shutil.copyfileobj(source, file)
        file.write(b"archive and cookie" * 1000)
    return target


def _bits(model: Model) -> list[float]:
    with context(model) as decoder:
        decoder.decode(rows(0, [5, 6, 7, 8]))
        return logits(decoder, 3)


def test_a_gguf_inside_a_file_is_the_same_model(lib: Any, tiny_files: dict[str, Path], tmp_path: Path) -> None:
    plain = load_model(str(tiny_files["llama"]))
    file = _inside(tiny_files["llama"], tmp_path / "modèle 模.exe", 65536 * 3)
    embedded = load_model(str(file), 65536 * 3, tiny_files["llama"].stat().st_size)
    try:
        assert _bits(plain) == _bits(embedded)
        assert plain.size == embedded.size
    finally:
        plain.close()
        embedded.close()


def test_weights_inside_a_file_are_mapped_not_copied(smollm2: Path, tmp_path: Path) -> None:
    """RssFile grows by the weights; RssAnon does not (Q4_1 has no packed layout on the common CPUs, so packing is off here)."""
    file = _inside(smollm2, tmp_path / "capsule.exe", 65536)
    code = """
import json, sys
from pathlib import Path
from tests.native import loaded
from server.llama.model import load_model
def memory():
    if sys.platform != "linux":
        return [0, 0]
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Rss"))
    return [int(lines[name].split()[0]) * 1024 for name in ("RssFile", "RssAnon")]
loaded()
before = memory()
model = load_model(sys.argv[1], 65536, int(sys.argv[2]), use_extra_bufts=False)
after = memory()
maps = Path("/proc/self/smaps").read_text() if sys.platform == "linux" else ""
print(json.dumps([after[0] - before[0], after[1] - before[1], model.size, sys.argv[1] in maps]))
"""
    done = run_python(code, str(file), str(smollm2.stat().st_size))
    file_growth, private_growth, size, is_mapped = json.loads(done.stdout)
    assert size > 90 << 20
    if sys.platform == "linux":
        assert is_mapped
        assert file_growth > 0.95 * size
        assert private_growth < 0.3 * size  # the vocabulary and its merges, about 15 MiB


def test_packing_can_be_refused(lib: Any, smollm2: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`use_extra_bufts` false: every tensor stays in the mapped file, whatever layouts the CPU library has."""
    caplog.set_level(logging.DEBUG, "server.llama.native")
    load_model(str(smollm2), use_extra_bufts=False).close()
    buffers = [record.getMessage() for record in caplog.records if "model buffer size" in record.getMessage()]
    assert len(buffers) == 1 and "CPU_Mapped" in buffers[0]


def test_unaligned_weights_are_copied_instead(lib: Any, tiny_files: dict[str, Path], tmp_path: Path) -> None:
    """Mapping needs the tensors on 32-byte boundaries of the file."""
    offset = 65536 + 1
    file = _inside(tiny_files["llama"], tmp_path / "odd.bin", offset)
    model = load_model(str(file), offset, tiny_files["llama"].stat().st_size)
    plain = load_model(str(tiny_files["llama"]))
    try:
        assert _bits(model) == _bits(plain)
    finally:
        model.close()
        plain.close()


def test_a_split_model_loads_by_its_first_part(tiny_models: dict[str, Model]) -> None:
    assert "00001-of-" in tiny_models["split"].path
    assert tiny_models["split"].size == tiny_models["llama"].size
    assert _bits(tiny_models["split"]) == _bits(tiny_models["llama"])


def test_progress_rises_to_one_and_an_error_in_it_stops_the_load(lib: Any, smollm2: Path) -> None:
    seen: list[float] = []
    load_model(str(smollm2), on_progress=seen.append).close()
    assert seen == sorted(seen) and seen[-1] == 1.0 and len(seen) > 10

    def give_up(fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_model(str(smollm2), on_progress=give_up)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"MZ\x90\x00 nothing" * 100, "invalid magic"), (b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, ""), (b"", "too short")],
)
def test_a_failed_load_says_why_in_one_sentence(lib: Any, tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(OperatorError) as caught:
        load_model(str(tmp_path / "bad.gguf"))
    assert why in caught.value.message and "bad.gguf" in caught.value.message and "\n" not in caught.value.message
    assert "no reason" not in caught.value.message


def test_a_cut_off_file_is_refused(lib: Any, smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(smollm2.read_bytes()[: 40 << 20])
    with pytest.raises(OperatorError, match="not within the file bounds"):
        load_model(str(tmp_path / "cut.gguf"))


def test_a_missing_file_and_a_range_outside_it(lib: Any, tiny_files: dict[str, Path]) -> None:
    with pytest.raises(OperatorError, match="cannot be read"):
        load_model("/nowhere/at/all.gguf")
    with pytest.raises(OperatorError, match="too short"):
        load_model(str(tiny_files["llama"]), 10, 10**9)


def test_a_context_that_cannot_be_made_says_why(tiny_models: dict[str, Model]) -> None:
    with pytest.raises(OperatorError, match="n_seq_max must be <= 256"):
        Context(tiny_models["llama"], n_ctx=512 * 300, n_slots=300)
