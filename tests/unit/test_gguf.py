"""The GGUF reader gives true facts about whole files, and one sentence (never a traceback, never much time or memory) about others."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server import gguf as reader
from server.errors import OperatorError
from server.gguf import GgufFacts, is_gguf, read_gguf, read_model
from tests import capsule_kit as kit


def _facts(tmp_path: Path, content: bytes) -> GgufFacts:
    return read_gguf(kit.write(tmp_path / "x.gguf", content))


def _refused(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(OperatorError) as caught:
        _facts(tmp_path, content)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_facts_of_the_real_model(smollm2: Path) -> None:
    facts = read_gguf(smollm2)
    assert (facts.architecture, facts.n_params, facts.n_tensors, facts.file_type) == ("llama", 134_515_008, 272, "Q4_1")
    assert (facts.context_length, facts.n_vocab, facts.licence) == (8192, 49152, "apache-2.0")
    assert facts.chat_template is not None and "<|im_start|>" in facts.chat_template
    assert facts.number("%s.block_count") == 30 and facts.metadata["tokenizer.ggml.model"] == "gpt2"


def test_agrees_with_the_reference_reader(smollm2: Path) -> None:
    facts, reference = read_gguf(smollm2), gguf.GGUFReader(smollm2)
    assert facts.data_offset == reference.data_offset
    assert facts.tensor_bytes == sum(int(tensor.n_bytes) for tensor in reference.tensors)
    assert facts.n_params == sum(int(tensor.n_elements) for tensor in reference.tensors)
    for key, value in facts.metadata.items():
        assert value == reference.fields[key].contents() or list(value) == reference.fields[key].contents()


def test_tables_agree_with_the_reference() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert reader._TENSOR_TYPES[int(kind)] == (kind.name, *gguf.GGML_QUANT_SIZES[kind])
    for file_type in gguf.LlamaFileType:
        if file_type.name != "GUESSED":
            assert reader._FILE_TYPES[int(file_type)] == file_type.name.removeprefix("MOSTLY_").removeprefix("ALL_")


def test_facts_at_an_offset(tmp_path: Path) -> None:
    inner = kit.gguf()
    path = kit.write(tmp_path / "carrier", b"x" * 1000 + inner + b"y" * 1000)
    facts = read_gguf(path, 1000, len(inner))
    assert (facts.name, facts.n_params, facts.context_length, facts.n_vocab) == ("Tiny", 64, 128, 100)
    with pytest.raises(OperatorError, match="cut short"):
        read_gguf(path, 1000, len(inner) + 2000)
    with pytest.raises(OperatorError, match="cut short"):
        read_gguf(path, 1000, len(inner) - 65)


def test_without_a_stated_type_the_main_tensor_type_counts(tmp_path: Path) -> None:
    metadata = {key: value for key, value in kit.METADATA.items() if key != "general.file_type"}
    assert _facts(tmp_path, kit.gguf(metadata, [("small", (32,), 0), ("large", (320, 32), 2)])).file_type == "Q4_0"


def test_long_lists_are_counted_and_not_kept(tmp_path: Path) -> None:
    tokens = [f"{i} " * 50 for i in range(20_000)]
    facts = _facts(tmp_path, kit.gguf({**kit.METADATA, "tokenizer.ggml.tokens": tokens, "x.scores": [0.5] * 10_000, "x.short": [1, 2]}))
    assert facts.n_vocab == 20_000 and facts.metadata["x.short"] == (1, 2)
    assert "tokenizer.ggml.tokens" not in facts.metadata and "x.scores" not in facts.metadata


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "does not start with GGUF"),
        (b"GGU", "does not start with GGUF"),
        (b"PK\3\4" + bytes(100), "does not start with GGUF"),
        (b"GGUF", "cut short"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**63, 0), "no room for"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**64 - 1), "no room for"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 2**63) + bytes(64), "damaged"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + kit.text("k") + struct.pack("<IQ", 8, 2**40) + bytes(64), "damaged"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + kit.text("k") + struct.pack("<IIQ", 9, 8, 2**61) + bytes(64), "damaged"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + kit.text("k") + struct.pack("<IIQ", 9, 4, 2**62) + bytes(64), "damaged"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + kit.text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64), "unknown type 9"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + kit.text("k") + struct.pack("<I", 77) + bytes(64), "unknown type 77"),
        (kit.gguf({"a": 1})[:-100], "cut short"),
        (kit.gguf({"general.alignment": 48}), "power of two"),
        (kit.gguf({"general.alignment": "32"}), "power of two"),
        (kit.gguf(tensors=[("a", (4,), 0), ("a", (4,), 0)]), "there twice"),
        (kit.gguf(tensors=[("a" * 64, (4,), 0)]), "damaged"),
        (kit.gguf(tensors=[("a", (33,), 2)]), "impossible shape"),
        (kit.gguf(tensors=[("a", (2**32, 2**31), 0)], data=b""), "impossible shape"),
        (kit.gguf(tensors=[("a", (2**30, 2**20), 0)], data=b""), "its tensors need"),
        (kit.gguf(tensors=[("a", (1, 1, 1, 1, 1), 0)]), "5 dimensions"),
        (kit.gguf(tensors=[("a", (4,), 4)]), "unknown type 4"),
        (kit.gguf().replace(struct.pack("<IQ", 2, 128), struct.pack("<IQ", 2, 2**63)), "misplaced"),
    ],
)
def test_bad_files_are_refused_with_their_fault(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in _refused(tmp_path, content)


def test_a_doubled_setting_is_refused(tmp_path: Path) -> None:
    pair = kit.text("k") + kit.value(1)
    assert "there twice" in _refused(tmp_path, struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + pair + pair)


def test_texts_may_not_fill_the_memory(tmp_path: Path) -> None:
    metadata = {f"k{i}": "x" * 2**20 for i in range(17)}
    content = kit.gguf(metadata)
    tracemalloc.start()
    assert "damaged" in _refused(tmp_path, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * reader.MAX_TEXT_BYTES


def test_a_header_without_end_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + kit.text("k") + struct.pack("<IIQ", 9, 0, 2**33) + b"x")
        file.truncate(2**34)  # sparse: 16 GiB that take no room
    with pytest.raises(OperatorError, match="header is larger than"):
        read_gguf(path)


def test_the_worst_list_costs_time_in_proportion(tmp_path: Path) -> None:
    """Empty texts are the most work for a byte; the header's size limit bounds them to 16 Mi. Compared with a list of a tenth."""

    def seconds(count: int) -> float:
        path = tmp_path / "x.gguf"
        with open(path, "wb") as file:
            file.write(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + kit.text("k") + struct.pack("<IIQ", 9, 8, count))
            file.truncate(file.tell() + count * 8)
        start = time.process_time()
        read_gguf(path)
        return time.process_time() - start

    assert seconds(1_000_000) < 40 * max(seconds(100_000), 0.005), "more than linear"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "is a directory"), (tmp_path / "none", "does not exist"), (Path("/dev/null"), "not a regular file")):
        with pytest.raises(OperatorError, match=words):
            is_gguf(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_gives_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(kit.gguf())
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(content) - 9))
        content[place : place + 8] = data.draw(st.binary(min_size=8, max_size=8) | st.sampled_from([b"\xff" * 8, bytes(8)]))
    cut = data.draw(st.integers(0, len(content)))
    path = kit.write(tmp_path / "x.gguf", bytes(content[:cut]))
    try:
        facts = read_gguf(path)
    except OperatorError as error:
        assert error.message.startswith(str(path))
    else:
        assert facts.data_offset <= cut or facts.n_tensors == 0
        facts.number("%s.context_length")


def _split(tmp_path: Path, n: int, *, total: int | None = None) -> list[Path]:
    paths = []
    for i in range(n):
        own = kit.METADATA if i == 0 else {}
        metadata = {**own, "split.no": i, "split.count": n, "split.tensors.count": 2 * n if total is None else total}
        content = kit.gguf(metadata, [(f"a{i}", (8,), 0), (f"b{i}", (8,), 0)])
        paths.append(kit.write(tmp_path / f"big-{i + 1:05d}-of-{n:05d}.gguf", content))
    return paths


def test_a_split_model_is_read_as_one(tmp_path: Path) -> None:
    paths = _split(tmp_path, 3)
    facts = read_model(paths[0])
    assert facts.parts == tuple(paths) and facts.n_tensors == 6 and facts.n_params == 48 and facts.name == "Tiny"


def test_split_models_with_a_fault(tmp_path: Path) -> None:
    paths = _split(tmp_path, 3)
    with pytest.raises(OperatorError, match="not the first part") as caught:
        read_model(paths[1])
    assert str(paths[0]) in caught.value.hint
    paths[2].rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(OperatorError, match="part 3 of 3 of the split model is missing"):
        read_model(paths[0])
    kit.write(paths[2], paths[1].read_bytes())
    with pytest.raises(OperatorError, match="is not part 3 of 3"):
        read_model(paths[0])
    kit.write(paths[2], kit.gguf()[:-100])
    with pytest.raises(OperatorError, match="cut short"):
        read_model(paths[0])
    with pytest.raises(OperatorError, match="its name does not say so"):
        read_model(paths[0].rename(tmp_path / "renamed.gguf"))
    with pytest.raises(OperatorError, match="hold 6 tensors instead of 7"):
        read_model(_split(tmp_path / "more", 3, total=7)[0])
