"""Tokens and log-probabilities go out with the text they make; those inside a stop string never do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.engine.answer import Answer, Piece
from server.protocol import TokenLogprob


def answer(*stops: str) -> Answer:
    return Answer(stops, with_tokens=True, with_logprobs=True)


def push(answer: Answer, token: int, data: bytes) -> Piece:
    return answer.push(token, data, TokenLogprob(token, data, -1.0))


def test_a_token_is_sent_with_its_last_character() -> None:
    out = answer()
    assert push(out, 1, b"a\xf0\x9f").tokens == ()
    second = push(out, 2, b"\x98\x80")
    assert (second.text, second.tokens) == ("😀", (1, 2))
    assert [item.token for item in second.logprobs] == [1, 2]


def test_a_token_of_which_only_a_part_is_shown_is_sent() -> None:
    out = answer("STOP")
    assert push(out, 1, b"text S").text == "text "
    last = push(out, 2, b"TOP!")
    assert out.stop_word == "STOP"
    assert (last.text, last.tokens) == ("", (1,))


def test_tokens_wholly_inside_the_stop_string_are_dropped() -> None:
    out = answer("</s>")
    pieces = [push(out, token, data) for token, data in enumerate([b"ok", b"<", b"/s", b">"])]
    assert [piece.tokens for piece in pieces] == [(0,), (), (), ()]


def test_flush_sends_what_was_held_back() -> None:
    out = answer("abc")
    assert not push(out, 1, b"a") and not push(out, 2, b"b")
    rest = out.flush()
    assert (rest.text, rest.tokens) == ("ab", (1, 2))


def test_a_token_without_text_is_sent_in_its_place() -> None:
    out = answer("xy")
    assert push(out, 1, b"x").tokens == ()
    assert push(out, 2, b"").tokens == ()
    assert push(out, 3, b"z").tokens == (1, 2, 3)
    assert push(out, 4, b"").tokens == (4,)


def test_nothing_is_kept_for_those_who_did_not_ask() -> None:
    out = Answer((), with_tokens=False, with_logprobs=False)
    assert push(out, 1, b"a") == Piece("a")
    assert out.flush() == Piece("")


PIECES = [b"a", b"ab", b"", b"b", b"\xc3", b"\xa9", "漢".encode()]


@given(st.lists(st.sampled_from(PIECES), max_size=20), st.sampled_from(["", "ab", "ba", "é"]))
def test_without_a_stop_every_token_comes_once_in_order_and_never_before_its_text(data: list[bytes], stop: str) -> None:
    out = answer(stop)
    sent: list[int] = []
    text = ""
    for token, raw in enumerate(data):
        piece = push(out, token, raw)
        sent += piece.tokens
        text += piece.text
        assert len(piece.tokens) == len(piece.logprobs)
        if out.stop_word is not None:
            break
        if sent:
            whole = b"".join(data[: sent[-1] + 1]).decode("utf-8", "replace")
            assert len(whole) <= len(text) + 1
    else:
        sent += out.flush().tokens
        assert out.stop_word is not None or sent == list(range(len(data)))
    assert sent == list(range(len(sent)))
