"""Small synthetic files for tests: GGUFs of any shape, PyInstaller archives with a valid cookie, program heads, capsules."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server.bundle import PayloadSource, write_bundle

ELF_HEAD = b"\x7fELF\x02\x01\x01" + bytes(11) + b"\x3e\x00" + bytes(2000)
PE_HEAD = b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0\x64\x86" + bytes(2000)
COOKIE_MAGIC = bytes.fromhex("4d45490c0b0a0b0e")


def archive(content: bytes = b"code" * 500, *, python: int = 311, toc: bytes = b"contents") -> bytes:
    """What PyInstaller appends to a bootloader, as far as its cookie tells."""
    length = len(content) + len(toc) + 88
    return content + toc + struct.pack("!8sIIII64s", COOKIE_MAGIC, length, len(content), len(toc), python, b"libpython3.11.so.1.0")


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """Type and content of one metadata value: str, bool, int (u32, or u64 where it must), float, list of one of them."""
    if isinstance(item, str):
        return struct.pack("<I", 8) + text(item)
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item) if item < 2**32 else struct.pack("<IQ", 10, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    parts = [value(element) for element in item]
    kind = parts[0][:4] if parts else struct.pack("<I", 4)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(parts)) + b"".join(part[4:] for part in parts)


METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.license": "apache-2.0",
    "general.file_type": 0,
    "llama.context_length": 128,
    "tokenizer.ggml.tokens": [f"token {i}" for i in range(100)],
    "tokenizer.chat_template": "{{ messages }}",
}


def gguf(
    metadata: Mapping[str, Any] = METADATA,
    tensors: Sequence[tuple[str, tuple[int, ...], int]] = (("a", (8, 4), 0), ("b", (32,), 2)),
    *,
    alignment: int = 32,
    data: bytes | None = None,
    version: int = 3,
) -> bytes:
    """A GGUF with the given (name, shape, type) tensors, laid out as the format wants; types 0 (F32) and 2 (Q4_0) only."""
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    out += [text(key) + value(item) for key, item in metadata.items()]
    offset = 0
    for name, shape, kind in tensors:
        elements = 1
        for length in shape:
            elements *= length
        out.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        size = elements * 4 if kind == 0 else elements // 32 * 18
        offset = -(-(offset + size) // alignment) * alignment
    head = b"".join(out)
    head += bytes(-len(head) % alignment)
    return head + (bytes(offset) if data is None else data)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def capsule(
    path: Path,
    payloads: Sequence[PayloadSource] = (),
    *,
    head: bytes = ELF_HEAD,
    code: bytes | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Path:
    """Write a capsule with a fake program around the payloads."""
    parts = path.parent / f"parts of {path.name}"
    write_bundle(
        path,
        head=write(parts / "head", head),
        archive=write(parts / "archive", code or archive()),
        payloads=payloads,
        meta=meta or {"capsule": "0.0.1", "versions": {"llama.cpp": "abc"}},
    )
    return path
