"""Frames survive any way of cutting the stream into reads; a broken stream is told apart from its end."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server import protocol
from server.framing import HEADER, FramingError, TruncatedFrame, read_frame, write_frame


class Dribble:
    """A raw stream: each read gives at most the next size of `sizes`."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._file = io.BytesIO(data)
        self._sizes = sizes

    def read(self, n: int, /) -> bytes:
        size = self._sizes.pop() if self._sizes else n
        return self._file.read(min(n, max(1, size)))


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 9), max_size=60))
def test_what_is_written_is_read(bodies: list[bytes], sizes: list[int]) -> None:
    written = io.BytesIO()
    for body in bodies:
        write_frame(written, body)
    stream = Dribble(written.getvalue(), sizes)
    assert [read_frame(stream) for _ in bodies] == bodies
    assert read_frame(stream) is None


@given(st.binary(min_size=1, max_size=20), st.data())
def test_a_stream_cut_anywhere_inside_a_frame_is_truncated(body: bytes, data: st.DataObject) -> None:
    whole = HEADER.pack(len(body)) + body
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(TruncatedFrame):
        read_frame(io.BytesIO(whole[:cut]))


def test_an_oversize_frame_is_refused_on_both_sides() -> None:
    with pytest.raises(FramingError, match="4294967295"):
        read_frame(io.BytesIO(b"\xff\xff\xff\xff"))
    with pytest.raises(FramingError, match="exceeds the limit of 3"):
        read_frame(io.BytesIO(HEADER.pack(4) + b"abcd"), limit=3)
    written = io.BytesIO()
    with pytest.raises(FramingError):
        write_frame(written, b"abcd", limit=3)
    assert written.getvalue() == b""


def test_protocol_frames_are_these_frames() -> None:
    body = read_frame(io.BytesIO(protocol.frame(protocol.Cancel(7))))
    assert body is not None and protocol.decode_command(body) == protocol.Cancel(7)
