"""Length-prefixed frames on a byte stream: 4 bytes little-endian length, then the body. Knows nothing of what is inside.

For blocking files (`subprocess` pipes, `os.fdopen`), used by every process that talks through a pipe.
"""

from __future__ import annotations

import struct
from typing import Protocol

HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 256 * 1024 * 1024


class Readable(Protocol):
    def read(self, n: int, /) -> bytes | None: ...


class Writable(Protocol):
    def write(self, data: bytes, /) -> int | None: ...
    def flush(self) -> None: ...


class FramingError(ValueError):
    """The stream does not hold a frame here: the length is out of bounds."""


class TruncatedFrame(FramingError):
    """The stream ended in the middle of a frame: its writer died."""


def read_frame(stream: Readable, limit: int = MAX_FRAME_BYTES) -> bytes | None:
    """Read one frame from a buffered stream and return its body; None at a clean end of the stream.

    Raises:
        TruncatedFrame: the stream ended inside a frame.
        FramingError: the frame is longer than `limit` bytes (nothing is allocated for it).
    """
    header = _read_exactly(stream, HEADER.size)
    if not header:
        return None
    if len(header) < HEADER.size:
        raise TruncatedFrame("the stream ended inside a frame header")
    length = int(HEADER.unpack(header)[0])
    if length > limit:
        raise FramingError(f"a frame of {length} bytes exceeds the limit of {limit}")
    body = _read_exactly(stream, length)
    if len(body) < length:
        raise TruncatedFrame(f"the stream ended after {len(body)} of {length} bytes of a frame")
    return body


def write_frame(stream: Writable, body: bytes, limit: int = MAX_FRAME_BYTES) -> None:
    """Write one frame to a buffered stream and flush it.

    Raises:
        FramingError: the body is longer than `limit` bytes; nothing has been written.
    """
    if len(body) > limit:
        raise FramingError(f"a frame of {len(body)} bytes exceeds the limit of {limit}")
    stream.write(HEADER.pack(len(body)) + body)
    stream.flush()


def _read_exactly(stream: Readable, n: int) -> bytes:
    """`n` bytes, or fewer at the end of the stream. One read in the usual case; raw streams may need several."""
    data = stream.read(n) or b""
    if len(data) == n or not data:
        return data
    parts = [data]
    missing = n - len(data)
    while missing and (data := stream.read(missing) or b""):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)
