"""Streamed text is one-shot text, however the bytes are split: same characters, same cut before the first stop string."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.detokenizer import TextStream
from tests.unit.engine.oracle import cut

SAMPLES = ["👩‍👩‍👧‍👦 🇩🇪", "漢字かな", "naïve – “x”", "abcabcabd", "e\u0301", "\ufffd?"]


def expected(data: bytes, stops: list[str]) -> tuple[str, str | None]:
    """An unfinished last character is left out, invalid bytes become U+FFFD."""
    return cut(codecs.getincrementaldecoder("utf-8")("replace").decode(data), stops)


def streamed(pieces: list[bytes], stops: list[str]) -> tuple[str, str | None]:
    stream = TextStream(stops)
    text = ""
    for piece in pieces:
        text += stream.push(piece)
        assert stream.n_delivered == len(text)
        if stream.stop_word is not None:
            break
    else:
        text += stream.flush()
    assert stream.n_delivered == len(text)
    return text, stream.stop_word


@st.composite
def split(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=len(data) + 2)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


texts = st.lists(st.one_of(st.sampled_from(SAMPLES), st.text(alphabet="ab漢😀é", max_size=6)), max_size=6).map("".join)
stop_lists = st.lists(st.text(alphabet="ab漢😀é", max_size=4), max_size=4)


@given(st.data(), texts, stop_lists)
def test_streamed_equals_one_shot(data: st.DataObject, text: str, stops: list[str]) -> None:
    raw = text.encode()
    assert streamed(data.draw(split(raw)), stops) == expected(raw, stops)


FRAGMENTS = [b"a", b"\xf0\x9f", b"\x98\x80", b"\xe6\xbc", b"\xa2", b"\xff", b"\xed\xa0\x80", b"\xc3"]


@given(st.data(), st.lists(st.sampled_from(FRAGMENTS)), stop_lists)
def test_invalid_bytes_become_what_a_whole_decode_makes_of_them(data: st.DataObject, parts: list[bytes], stops: list[str]) -> None:
    raw = b"".join(parts)
    assert streamed(data.draw(split(raw)), [*stops, "\ufffda"]) == expected(raw, [*stops, "\ufffda"])


@pytest.mark.parametrize("sample", SAMPLES[:3])
def test_valid_text_byte_by_byte_holds_no_replacement_character(sample: str) -> None:
    text, _ = streamed([bytes([byte]) for byte in sample.encode()], [])
    assert text == sample and "\ufffd" not in text


def test_a_character_cut_in_two_by_the_limit_is_left_out() -> None:
    for n in range(1, 4):
        assert streamed([b"ab", "🔍".encode()[:n]], []) == ("ab", None)


def test_incomplete_character_is_held_back_until_it_is_complete() -> None:
    stream = TextStream()
    assert [stream.push(bytes([byte])) for byte in "😀".encode()] == ["", "", "", "😀"]


def test_a_possible_stop_string_is_held_back_and_released_when_it_is_none() -> None:
    stream = TextStream(["</s>"])
    assert stream.push(b"hi </") == "hi "
    assert stream.push(b"b>") == "</b>"
    assert stream.push(b" <") == " "
    assert stream.flush() == "<"
    assert stream.stop_word is None


def test_nothing_is_held_back_longer_than_needed() -> None:
    stream = TextStream(["aab"])
    assert stream.push(b"aaaa") == "aa"
    assert stream.push(b"c") == "aac"


def test_after_the_stop_string_nothing_comes() -> None:
    stream = TextStream(["END"])
    assert stream.push(b"text ENDmore") == "text "
    assert stream.stop_word == "END"
    assert stream.push(b"and more") == "" and stream.flush() == ""


def test_the_stop_string_that_ends_first_wins_and_of_several_the_longest() -> None:
    assert streamed([b"xabcd"], ["abcd", "bc"]) == ("xa", "bc")
    assert streamed([b"xabc"], ["bc", "abc", "c"]) == ("x", "abc")


def test_empty_stop_strings_are_ignored() -> None:
    assert streamed([b"text"], [""]) == ("text", None)


def test_a_long_answer_beside_long_stop_strings_costs_its_length() -> None:
    """A re-scan of the text at each token would take minutes here."""
    stream = TextStream(["a" * 20_000 + "b", "x" * 1000])
    n = sum(len(stream.push(b"a")) for _ in range(200_000))
    assert n == 180_000
    assert stream.flush() == "a" * 20_000
