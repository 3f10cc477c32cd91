"""Text and tokens: what goes in comes out, whatever the text; nothing outside the vocabulary is looked up."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.llama.model import Model
from server.llama.vocab import Vocabulary, utf8

SPECIAL = "<|im_start|>"


@pytest.fixture(scope="module")
def vocab(model: Model) -> Vocabulary:
    return model.vocab


def test_text_survives_the_round_trip(vocab: Vocabulary) -> None:
    # SmolLM2's vocabulary lacks a few bytes: control characters and the lead bytes of the upper planes.
    written = st.characters(exclude_categories=("Cs", "Cn", "Co", "Cc"), include_characters="\n\t", max_codepoint=0x1FFFF)

    @given(st.text(written, max_size=200))
    def check(text: str) -> None:
        assert vocab.detokenize(vocab.tokenize(text, add_special=False, parse_special=False)) == text.encode()

    check()


@given(st.text(st.characters(), max_size=50))
def test_any_text_becomes_valid_utf8(text: str) -> None:
    assert utf8(text).decode() is not None


@pytest.mark.parametrize(
    ("text", "expected"), [("\ud800", "\ufffd"), ("a\udfffb", "a\ufffdb"), ("\ud83d\ude00", "\U0001f600"), ("x\x00y", "x\x00y"), ("", "")]
)
def test_surrogates_and_nul_are_no_trouble(vocab: Vocabulary, text: str, expected: str) -> None:
    assert vocab.detokenize(vocab.tokenize(text, add_special=True, parse_special=True)) == expected.encode()


def test_control_tokens_count_only_where_they_may(vocab: Vocabulary) -> None:
    (token,) = vocab.tokenize(SPECIAL, add_special=False, parse_special=True)
    assert len(vocab.tokenize(SPECIAL, add_special=False, parse_special=False)) > 1
    assert vocab.piece(token) == b"" and vocab.piece(token, special=True) == SPECIAL.encode()
    assert vocab.bos_text() == SPECIAL and vocab.eos_text() == "<|im_end|>" and not vocab.add_bos


def test_end_of_generation_tokens(vocab: Vocabulary) -> None:
    (end,) = vocab.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert vocab.is_eog(end) and end in vocab.eog_tokens
    assert all(vocab.is_eog(token) for token in vocab.eog_tokens)
    assert not vocab.is_eog(vocab.tokenize("hello", add_special=False, parse_special=False)[0])


@pytest.mark.parametrize("token", [-1, 49152, 2**31 - 1, -(2**31), 2**40])
def test_a_token_outside_the_vocabulary_is_an_error(vocab: Vocabulary, token: int) -> None:
    for call in (vocab.piece, vocab.is_eog, vocab.check):
        with pytest.raises(ValueError, match="not in the vocabulary"):
            call(token)
    with pytest.raises(ValueError, match="not in the vocabulary"):
        vocab.detokenize([5, token])


def test_long_texts_are_cut_where_nothing_changes(vocab: Vocabulary) -> None:
    """Thousands of control tokens would take native code quadratic time."""
    rng = random.Random(4)
    words = [SPECIAL, "<|im_end|>", "user\n", " hello", "\n\n", "  ", "日本", "a", " " + SPECIAL, "0123"]
    for _ in range(4):
        text = "".join(rng.choices(words, k=9000))
        assert len(list(vocab._chunks(text))) > 1 and "".join(vocab._chunks(text)) == text
        for add_special in (False, True):
            assert vocab.tokenize(text, add_special=add_special, parse_special=True) == vocab._tokenize(text, add_special, True)


def test_a_megabyte_of_anything_is_tokenised(vocab: Vocabulary) -> None:
    for unit in ("a", " ", "\n", "7", "é", SPECIAL, "<|"):
        text = unit * (1_000_000 // len(unit.encode()))
        tokens = Counter(vocab.tokenize(text, add_special=False, parse_special=True))
        assert sum(count * len(vocab.piece(token, special=True)) for token, count in tokens.items()) == len(text.encode())


def test_the_beginning_is_added_once_to_a_long_text(tiny_model: Model) -> None:
    vocab = tiny_model.vocab
    text = "<s>" + "hello </s> <s>" * 3000
    tokens = vocab.tokenize(text, add_special=True, parse_special=True)
    assert tokens == vocab._tokenize(text, True, True)
    assert tokens[:3] == [1, 1, tokens[2]] and tokens[2] != 1


def test_threads_do_not_disturb_each_other(vocab: Vocabulary) -> None:
    texts = [f"{index} sheep and {index * 7} goats, naïve 🐐" * 20 for index in range(8)]
    alone = [vocab.tokenize(text, add_special=False, parse_special=True) for text in texts]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(50):
            tokens = vocab.tokenize(texts[index], add_special=False, parse_special=True)
            if tokens != alone[index] or vocab.detokenize(tokens) != texts[index].encode():
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
