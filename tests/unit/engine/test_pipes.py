"""Frames come through whole and in order, writers wait only for a reader that is stuck, and the end of the commands is noticed."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Sequence
from typing import BinaryIO

import pytest

from server.engine.pipes import CommandReader, FrameWriter
from server.framing import read_frame
from server.protocol import Cancel, Command, GetSlots, Message, Text, decode_message, frame


def pipe() -> tuple[BinaryIO, BinaryIO]:
    read, write = os.pipe()
    return os.fdopen(read, "rb"), os.fdopen(write, "wb", buffering=0)


def never() -> None:
    raise AssertionError("the pipe is not broken")


def put_all(writer: FrameWriter, messages: Sequence[Message]) -> None:
    for message in messages:
        writer.put(message)


def test_messages_of_many_threads_come_through_whole() -> None:
    reader, stream = pipe()
    writer = FrameWriter(stream, on_broken=never)
    writer.start()
    threads = [threading.Thread(target=put_all, args=(writer, [Text(n, "x" * i) for i in range(200)])) for n in range(4)]
    for thread in threads:
        thread.start()
    got: dict[int, list[int]] = {n: [] for n in range(4)}
    for _ in range(800):
        body = read_frame(reader)
        assert body is not None
        message = decode_message(body)
        assert isinstance(message, Text)
        got[message.id].append(len(message.text))
    assert all(lengths == list(range(200)) for lengths in got.values())
    for thread in threads:
        thread.join()
    assert writer.flush(5)
    reader.close()


def test_a_full_pipe_stalls_the_writer_only_over_the_limit() -> None:
    reader, stream = pipe()
    writer = FrameWriter(stream, on_broken=never, most_waiting=1_000_000)
    writer.start()
    message: Message = Text(1, "x" * 100_000)
    for _ in range(8):
        writer.put(message)  # returns although nobody reads
    assert not writer.flush(0.05)
    stuck = threading.Thread(target=put_all, args=(writer, [message] * 8))
    stuck.start()
    stuck.join(0.2)
    assert stuck.is_alive()
    for _ in range(16):
        assert read_frame(reader) is not None
    stuck.join(5)
    assert not stuck.is_alive() and writer.flush(5)
    reader.close()


def test_a_reader_that_went_away_is_reported() -> None:
    reader, stream = pipe()
    broken = threading.Event()
    writer = FrameWriter(stream, on_broken=broken.set)
    writer.start()
    reader.close()
    writer.put(Text(1, "x"))
    assert broken.wait(5)
    stream.close()


def ends(data: bytes) -> tuple[list[Command], bool]:
    done = threading.Event()
    clean: list[bool] = []

    def on_end(how: bool) -> None:
        clean.append(how)
        done.set()

    reader = CommandReader(io.BytesIO(data), on_end)
    reader.start()
    assert done.wait(5)
    commands = []
    while not reader.commands.empty():
        commands.append(reader.commands.get())
    return commands, clean[0]


def test_the_end_between_two_commands_is_clean() -> None:
    assert ends(frame(Cancel(1)) + frame(GetSlots(2))) == ([Cancel(1), GetSlots(2)], True)


@pytest.mark.parametrize("rest", [b"\x05", b"\x05\0\0\0ab", b"\xff\xff\xff\xff", b"\x01\0\0\0\xc1", frame(Text(1, "not a command"))])
def test_anything_else_is_not(rest: bytes) -> None:
    assert ends(frame(Cancel(1)) + rest) == ([Cancel(1)], False)
