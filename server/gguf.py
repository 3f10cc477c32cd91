"""Reads a GGUF header in plain Python: what the model is, and whether the file is whole. Never touches the weights.

The file is taken as hostile: every count and length is checked against what is left of it, the header has a size limit, and whatever
is wrong is one OperatorError. The rules are those of llama.cpp's own reader, so a file that passes here is not refused there for
its layout. Knows neither capsule files nor llama.cpp.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from server.errors import OperatorError
from server.files import open_input, reason, shown

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 128 * 1024 * 1024
MAX_TEXT_BYTES = 16 * 1024 * 1024  # one text, and all that are kept together
MAX_PAIRS = 65_536
MAX_TENSORS = 262_144
MAX_KEY_BYTES = 65_535
MAX_KEPT_NUMBERS = 4096
MAX_KEPT_STRINGS = 64
MAX_VOCAB_DIFFERENCE = 128  # models of one family pad the same vocabulary to different lengths; llama.cpp draws the line here too
_CHUNK = 1024 * 1024

# GGUF value types: number -> struct code; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

# Tensor types: number -> (name, elements of a block, bytes of a block).
_TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip

# `general.file_type`: what most of the weights are stored as.
_FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L",
    14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M",
    32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip

_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """What a GGUF header says. Sizes in bytes; an absent text is "", an absent number 0, an absent template None."""

    version: int
    kind: str
    """`general.type`: model, adapter, mmproj …; "model" where the file does not say."""
    name: str
    architecture: str
    n_params: int
    n_tensors: int
    file_type: str
    context_length: int
    n_vocab: int
    chat_template: str | None
    licence: str
    size_label: str
    tensor_bytes: int
    data_offset: int
    """Where the tensors start, counted from the start of the GGUF."""
    split_no: int = 0
    split_count: int = 1
    split_tensors: int = 0
    parts: tuple[Path, ...] = ()
    """All files of a split model, the first part included; empty for a model in one piece."""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Every scalar, every string, and the short arrays (as tuples)."""

    def number(self, key: str) -> int:
        """A whole number of the metadata; `%s` in the key stands for the architecture. 0 if absent."""
        value = self.metadata.get(key.replace("%s", self.architecture))
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def is_gguf(path: Path) -> bool:
    """Whether the file starts as a GGUF does.

    Raises:
        OperatorError: the file cannot be opened.
    """
    with open_input(path) as file:
        return file.read(4) == MAGIC


def read_gguf(path: Path, offset: int = 0, size: int | None = None, *, what: str = "") -> GgufFacts:
    """Read and check one GGUF that lies at `offset` in a file (`size` bytes; None: up to the file's end). `what` names it in errors.

    Raises:
        OperatorError: it is not a GGUF, is damaged or cut short, or some tensor lies outside of it.
    """
    with open_input(path) as file:
        end = file.seek(0, 2)
        if size is not None:
            if offset + size > end:
                raise OperatorError(f"{what or shown(path)} is cut short: it needs {offset + size} bytes and has {end}")
            end = offset + size
        return _read(_Cursor(file, offset, end, what or shown(path)))


def read_model(path: Path) -> GgufFacts:
    """Read and check the model in a GGUF file, with all parts if it is split; `path` then is the first part.

    Raises:
        OperatorError: as for `read_gguf`; or a part is missing or belongs to another model, or `path` is not the first part.
    """
    first = read_gguf(path)
    if first.split_count <= 1:
        return first
    name = _SPLIT_NAME.fullmatch(path.name)
    count = first.split_count
    if name is None or int(name["count"]) != count:
        raise OperatorError(
            f"{shown(path)} is part {first.split_no + 1} of a model split into {count}, but its name does not say so",
            hint=f"name the parts NAME-00001-of-{count:05d}.gguf and so on",
        )
    paths = [path.with_name(f"{name['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    if first.split_no != 0 or int(name["part"]) != 1:
        raise OperatorError(f"{shown(path)} is not the first part of its split model", hint=f"name the first part: {shown(paths[0])}")
    facts = [first]
    for number, part in enumerate(paths[1:], start=1):
        if not part.exists():
            raise OperatorError(f"part {number + 1} of {count} of the split model is missing: {shown(part)}")
        fact = read_gguf(part)
        if fact.split_no != number or fact.split_count != count:
            raise OperatorError(f"{shown(part)} is not part {number + 1} of {count} of {shown(path)}")
        facts.append(fact)
    n_tensors = sum(fact.n_tensors for fact in facts)
    if first.split_tensors and n_tensors != first.split_tensors:
        raise OperatorError(f"the parts of {shown(path)} hold {n_tensors} tensors instead of {first.split_tensors}")
    return replace(
        first,
        n_params=sum(fact.n_params for fact in facts),
        n_tensors=n_tensors,
        tensor_bytes=sum(fact.tensor_bytes for fact in facts),
        parts=tuple(paths),
    )


class _Cursor:
    """Walks through the header inside [start, end) of a file, reading it a chunk at a time."""

    def __init__(self, file: BinaryIO, start: int, end: int, what: str) -> None:
        self._file = file
        self._start = start
        self._end = end
        self._what = what
        self._buffer = b""
        self._base = start  # where the buffer's first byte lies in the file
        self._at = 0  # index in the buffer
        self._texts = 0  # bytes of the texts taken so far

    @property
    def position(self) -> int:
        """Bytes since the start of the GGUF."""
        return self._base + self._at - self._start

    @property
    def left(self) -> int:
        """Bytes from here to the end of the GGUF."""
        return self._end - self._base - self._at

    def bad(self, problem: str) -> OperatorError:
        return OperatorError(f"{self._what} is not a usable GGUF file: {problem}")

    def take(self, n: int) -> bytes:
        self._need(n)
        self._at += n
        return self._buffer[self._at - n : self._at]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self, limit: int = MAX_TEXT_BYTES) -> str:
        n = self.u64()
        self._texts += n
        if n > limit or self._texts > MAX_TEXT_BYTES:
            raise self.bad(f"it is damaged (a text of {n} bytes)")
        return self.take(n).decode("utf-8", "replace")

    def skip(self, n: int) -> None:
        if n > self.left:
            raise self._short()
        self._at += n
        if self.position > MAX_HEADER_BYTES:
            raise self._long()

    def skip_strings(self, count: int) -> None:
        """Pass over `count` strings; the inner loop is all that a vocabulary of 300,000 costs."""
        unpack = _U64.unpack_from
        while count:
            self._need(8)
            buffer, at, last = self._buffer, self._at, len(self._buffer) - 8
            while count and at <= last:
                at += 8 + unpack(buffer, at)[0]
                count -= 1
            self.skip(at - self._at)

    def _need(self, n: int) -> None:
        """See that the buffer holds the next `n` bytes."""
        if self._at + n <= len(self._buffer):
            return
        if n > self.left:
            raise self._short()
        if self.position + n > MAX_HEADER_BYTES:
            raise self._long()
        self._base += self._at
        self._at = 0
        try:
            self._file.seek(self._base)
            self._buffer = self._file.read(min(max(n, _CHUNK), self._end - self._base))
        except OSError as error:
            raise OperatorError(f"{self._what} cannot be read: {reason(error)}") from None
        if len(self._buffer) < n:
            raise self._short()

    def _short(self) -> OperatorError:
        return self.bad("it is cut short or damaged (the header runs past its end)")

    def _long(self) -> OperatorError:
        return self.bad(f"its header is larger than {MAX_HEADER_BYTES // 2**20} MiB")


def _read(cursor: _Cursor) -> GgufFacts:
    if cursor.left < 4 or cursor.take(4) != MAGIC:
        raise cursor.bad("it does not start with GGUF")
    version = cursor.u32()
    if version not in (2, 3):
        big_endian = version in (2 << 24, 3 << 24)
        raise cursor.bad("it was made for big-endian machines" if big_endian else f"its version {version} is not supported (2 and 3 are)")
    n_tensors, n_pairs = cursor.u64(), cursor.u64()
    if n_pairs > MAX_PAIRS or n_tensors > MAX_TENSORS or n_pairs * 13 + n_tensors * 24 > cursor.left:
        raise cursor.bad(f"it is cut short or damaged (no room for {n_pairs} settings and {n_tensors} tensors)")
    metadata, counts = _read_metadata(cursor, n_pairs)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.bad("its alignment is not a power of two")
    tensors = _read_tensors(cursor, n_tensors, alignment)
    data_offset = -(-cursor.position // alignment) * alignment
    if n_tensors and data_offset + tensors.end > cursor.position + cursor.left:
        raise cursor.bad(
            f"it is cut short: its tensors need {data_offset + tensors.end} bytes and there are {cursor.position + cursor.left}"
        )

    def text(key: str) -> str:
        value = metadata.get(key)
        return value if isinstance(value, str) else ""

    facts = GgufFacts(
        version=version,
        kind=text("general.type") or "model",
        name=text("general.name"),
        architecture=text("general.architecture"),
        n_params=tensors.n_params,
        n_tensors=n_tensors,
        file_type=tensors.main_type,
        context_length=0,
        n_vocab=counts.get("tokenizer.ggml.tokens", 0),
        chat_template=text("tokenizer.chat_template") or None,
        licence=text("general.license"),
        size_label=text("general.size_label"),
        tensor_bytes=tensors.n_bytes,
        data_offset=data_offset,
        metadata=metadata,
    )
    stated_type = metadata.get("general.file_type")
    return replace(
        facts,
        file_type=_FILE_TYPES.get(stated_type, tensors.main_type) if isinstance(stated_type, int) else tensors.main_type,
        context_length=facts.number("%s.context_length"),
        n_vocab=facts.n_vocab or facts.number("%s.vocab_size"),
        split_no=facts.number("split.no"),
        split_count=facts.number("split.count") or 1,
        split_tensors=facts.number("split.tensors.count"),
    )


def _read_metadata(cursor: _Cursor, n_pairs: int) -> tuple[dict[str, Any], dict[str, int]]:
    """The kept values, and the length of every array."""
    metadata: dict[str, Any] = {}
    counts: dict[str, int] = {}
    seen: set[str] = set()
    for _ in range(n_pairs):
        key = cursor.string(MAX_KEY_BYTES)
        if key in seen:
            raise cursor.bad(f"the setting {key!r} is there twice")
        seen.add(key)
        kind = cursor.u32()
        if kind == _STRING:
            metadata[key] = cursor.string()
        elif kind in _SCALARS:
            metadata[key] = _scalars(cursor, kind, 1)[0]
        elif kind == _ARRAY:
            kind, counts[key] = cursor.u32(), cursor.u64()
            value = _read_array(cursor, kind, counts[key])
            if value is not None:
                metadata[key] = value
        else:
            raise cursor.bad(f"the setting {key!r} has the unknown type {kind}")
    return metadata, counts


def _read_array(cursor: _Cursor, kind: int, count: int) -> tuple[Any, ...] | None:
    if kind == _STRING:
        if count * 8 > cursor.left:
            raise cursor.bad(f"it is cut short or damaged (a list of {count} texts)")
        if count <= MAX_KEPT_STRINGS:
            return tuple(cursor.string() for _ in range(count))
        cursor.skip_strings(count)
        return None
    if kind not in _SCALARS:
        raise cursor.bad(f"a list holds values of the unknown type {kind}")
    if count <= MAX_KEPT_NUMBERS:
        return _scalars(cursor, kind, count)
    cursor.skip(count * struct.calcsize("<" + _SCALARS[kind]))
    return None


def _scalars(cursor: _Cursor, kind: int, count: int) -> tuple[Any, ...]:
    code = f"<{count}{_SCALARS[kind]}"
    return struct.unpack(code, cursor.take(struct.calcsize(code)))


@dataclass(slots=True)
class _Tensors:
    n_params: int
    n_bytes: int
    end: int
    """End of the last tensor, counted from the first; 0 if there is none."""
    main_type: str


def _read_tensors(cursor: _Cursor, n_tensors: int, alignment: int) -> _Tensors:
    """Check shapes, types and places: one after another, each start aligned, as every writer lays them and llama.cpp wants them."""
    n_params = n_bytes = end = expected = 0
    by_type: dict[str, int] = {}
    seen: set[str] = set()
    for _ in range(n_tensors):
        name = cursor.string(63)
        if name in seen:
            raise cursor.bad(f"the tensor {name!r} is there twice")
        seen.add(name)
        n_dims = cursor.u32()
        if n_dims > 4:
            raise cursor.bad(f"the tensor {name!r} has {n_dims} dimensions")
        shape = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims))
        elements = 1
        for length in shape:
            elements *= length
        number, place = cursor.u32(), cursor.u64()
        kind, block, block_bytes = _TENSOR_TYPES.get(number, ("", 1, 0))
        if not kind:
            raise cursor.bad(f"the tensor {name!r} has the unknown type {number}")
        if elements >= 2**63 or (shape[0] if shape else 1) % block:
            raise cursor.bad(f"the tensor {name!r} has an impossible shape")
        if place != expected:
            raise cursor.bad(f"the tensor {name!r} is misplaced")
        size = elements // block * block_bytes
        n_params += elements
        n_bytes += size
        by_type[kind] = by_type.get(kind, 0) + size
        end = place + size
        expected = -(-end // alignment) * alignment
    return _Tensors(n_params, n_bytes, end, max(by_type, key=lambda kind: by_type[kind]) if by_type else "")
