"""Request bodies: bytes from the connection under limits of size, rate and nesting, then one typed record. Knows no route.

Unknown members are ignored and null counts as absent; messages name the member that is wrong.
"""

from __future__ import annotations

import asyncio
import functools
import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import web

from server.errors import ClientError, PayloadTooLarge, RequestTimeout

T = TypeVar("T")

MAX_DEPTH = 100
MAX_MARKS = 4_000_000
"""Most brackets and quotes of one body: beyond it, counting them would hold up everybody else."""

_NOT_MARKS = bytes(sorted(set(range(256)) - set(b'"[]{}')))
_STEP = [0] * 256
_STEP[ord("[")] = _STEP[ord("{")] = 1
_STEP[ord("]")] = _STEP[ord("}")] = -1
_PATH = re.compile(r"^(?P<what>.*) - at `(?:key in )?\$\.?(?P<path>.*)`$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    max_bytes: int
    grace_s: float = 10.0
    """A body may take this long, and longer in proportion to what has arrived ..."""
    min_rate: float = 4096.0
    """... at this many bytes per second."""


BODY_LIMITS = web.AppKey("body_limits", BodyLimits)


async def read_json(request: web.Request, kind: type[T]) -> T:
    """The body as a record of `kind`.

    Raises:
        ClientError: it is empty, no JSON object, nested too deeply, or a member has the wrong type (named in `param`).
        PayloadTooLarge, RequestTimeout: it is larger, or arrives more slowly, than the limits allow.
    """
    return parse_json(await read_body(request, request.app[BODY_LIMITS]), kind)


async def read_body(request: web.Request, limits: BodyLimits) -> bytes:
    if (request.content_length or 0) > limits.max_bytes:
        raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    start = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(start + limits.grace_s) as deadline:
            while part := await request.content.readany():
                size += len(part)
                if size > limits.max_bytes:
                    raise _too_large(limits)
                parts.append(part)
                deadline.reschedule(start + limits.grace_s + size / limits.min_rate)
    except TimeoutError:
        raise RequestTimeout(f"the request body came too slowly: {size} bytes so far") from None
    except (web.RequestPayloadError, ConnectionError):
        raise ClientError("the request body is malformed or ended early") from None
    return b"".join(parts)


def parse_json(body: bytes, kind: type[T]) -> T:
    """Pure part of `read_json`; same errors."""
    body = body.removeprefix(b"\xef\xbb\xbf")
    if not body.strip():
        raise ClientError("the request body is empty; a JSON object is expected")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ClientError(f"the request body is not valid UTF-8 (byte {error.start})") from None
    if nesting(body) > MAX_DEPTH:
        raise ClientError(f"the request body is nested more than {MAX_DEPTH} levels deep")
    try:
        record: T = _decoder(cast(Any, kind)).decode(body)
        return record
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except msgspec.DecodeError as error:
        raise ClientError(f"the request body is not valid JSON: {str(error).removeprefix('JSON is malformed: ').lower()}") from None
    except (RecursionError, ValueError, OverflowError):
        raise ClientError("the request body holds a nesting or a number that is too large") from None


def nesting(body: bytes) -> int:
    """How deeply brackets are nested outside of strings; meaningful for well-formed JSON, harmless for anything else.

    Raises:
        ClientError: there are more than `MAX_MARKS` brackets and quotes.
    """
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return 0
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_MARKS)
    if len(marks) > MAX_MARKS:
        raise ClientError(f"the request body holds more than {MAX_MARKS} brackets and quotes")
    outside = b"".join(marks.split(b'"')[::2])
    return max(accumulate(map(_STEP.__getitem__, outside)), default=0)


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _wrong_type(text: str) -> ClientError:
    found = _PATH.match(text)
    what = (found["what"] if found else text).replace("`", "").replace(" | ", " or ")
    what = what[:1].lower() + what[1:]
    if found is None or not found["path"]:
        return ClientError(f"the request body must be a JSON object: {what}")
    return ClientError(f"{found['path']}: {what}", param=found["path"])


def _too_large(limits: BodyLimits) -> PayloadTooLarge:
    return PayloadTooLarge(f"the request body is larger than {limits.max_bytes} bytes; see --max-body-mib")


def check_plain(value: Any, path: str) -> None:
    """Free-form JSON that will travel on to another process: numbers must fit 64 bits.

    Raises:
        ClientError: one does not; `param` is its path.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            check_plain(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            check_plain(inner, f"{path}[{i}]")
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ClientError(f"{path}: the number is too large", param=path)
