"""Bodies: size, rate, depth and form are checked before anything else; messages name the member that is wrong."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ClientError
from server.http.body import MAX_DEPTH, MAX_MARKS, BodyLimits, check_plain, nesting, parse_json
from tests.unit.http.live import running


class Inner(msgspec.Struct):
    b: bool | None = None


class Record(msgspec.Struct):
    x: int | None = None
    f: float | None = None
    s: str | None = None
    inner: Inner | None = None
    many: list[Inner] | None = None
    free: Any = None


def refused(body: bytes) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parse_json(body, Record)
    assert type(caught.value) is ClientError
    return caught.value


def depth_of(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(depth_of, children), default=0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"x": "1"}', "x"),
        (b'{"x": 1.5}', "x"),
        (b'{"f": 1e400}', "f"),
        (b'{"inner": {"b": 1}}', "inner.b"),
        (b'{"many": [{}, {"b": 1}]}', "many[1].b"),
    ],
)
def test_wrong_types_name_the_member(body: bytes, param: str) -> None:
    error = refused(body)
    assert error.param == param and error.message.startswith(param + ":") and "`" not in error.message


@pytest.mark.parametrize(
    "body",
    [
        b"", b" \n", b"\xef\xbb\xbf", b"{", b"[]", b"null", b"5", b'"x"', b"{} {}", b"\x00", b'{"f": NaN}', b'{"f": Infinity}',
        b'{"s": "\xff"}', b'{"y": "\xff"}', b'{"s": "\\ud800"}', b'{"y": "\\ud800"}',
    ],
)  # fmt: skip
def test_what_is_no_json_object(body: bytes) -> None:
    assert refused(body).param is None


def test_null_is_absent_unknown_is_ignored_and_a_mark_in_front_is_skipped() -> None:
    assert parse_json(b'\xef\xbb\xbf{"x": null, "other": [1, {"a": null}], "f": 2}', Record) == Record(f=2.0)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 200, 5_000, 900_000])
def test_deep_nesting(depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"":', b"}")):
        assert "levels" in refused(b'{"free": ' + opening * depth + b"1" + closing * depth + b"}").message
        assert "levels" in refused(b'{"unknown": ' + opening * depth + b"1" + closing * depth + b"}").message


def test_brackets_in_strings_do_not_count() -> None:
    for text in ("[" * 500, '"' + "[" * 500, "\\" * 3 + '"' + "{" * 500, "\\\\" + "[" * 500):
        assert parse_json(json.dumps({"s": text}).encode(), Record) == Record(s=text)


_TRICKY = st.text('[]{}"\\a', max_size=12)


@given(st.recursive(_TRICKY, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TRICKY, inner, max_size=3), max_leaves=40))
def test_depth_is_counted_as_a_parser_would(value: Any) -> None:
    filler = "[" * (MAX_DEPTH + 1)  # so that the count by itself does not settle it
    body = json.dumps([filler, value]).encode()
    assert nesting(body) == depth_of([filler, value])


def test_a_flood_of_brackets_is_refused_quickly() -> None:
    body = b'{"free": [' + b"[]," * (MAX_MARKS // 2) + b"[]]}"
    start = time.perf_counter()
    assert "brackets" in refused(body).message
    assert time.perf_counter() - start < 5


def test_numbers_that_cannot_travel() -> None:
    check_plain({"a": [1, -(2**63), 2**64 - 1, True, 1.5, None, "x"]}, "m")
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(ClientError) as caught:
            check_plain({"a": [0, {"b": number}]}, "m")
        assert caught.value.param == "m.a[1].b"


@pytest.mark.asyncio
async def test_the_size_limit_with_and_without_a_length() -> None:
    async with running(body_limits=BodyLimits(1000)) as live:
        body = json.dumps({"content": "x" * 900}).encode()
        assert (await live.ask("POST", "/tokenize", data=body))[0] == 200
        big = json.dumps({"content": "x" * 2000}).encode()
        status, reply, _ = await live.ask("POST", "/tokenize", data=big)
        assert status == 413 and "--max-body-mib" in reply["error"]["message"]

        async def parts() -> Any:
            for i in range(0, len(big), 100):
                yield big[i : i + 100]

        status, reply, _ = await live.ask("POST", "/tokenize", data=parts())
        assert status == 413 and reply["error"]["code"] == "payload_too_large"
        assert (await live.ask("POST", "/tokenize", data=body))[0] == 200


@pytest.mark.asyncio
async def test_a_body_that_dribbles_is_given_up() -> None:
    async with running(body_limits=BodyLimits(10_000, grace_s=0.3, min_rate=1000)) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n")

        async def dribble() -> None:
            for _ in range(500):
                writer.write(b" ")
                await asyncio.sleep(0.02)

        task = asyncio.create_task(dribble())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        task.cancel()
        writer.close()
        assert b" 408 " in head.split(b"\r\n")[0]


@pytest.mark.asyncio
async def test_a_slow_but_steady_body_is_taken() -> None:
    async with running(body_limits=BodyLimits(10_000, grace_s=0.2, min_rate=100)) as live:

        async def parts() -> Any:
            yield b'{"content": "'
            for _ in range(8):
                await asyncio.sleep(0.05)
                yield b"x" * 50
            yield b'"}'

        assert (await live.ask("POST", "/tokenize", data=parts()))[0] == 200


@pytest.mark.asyncio
async def test_a_broken_chunked_body() -> None:
    async with running() as live:
        reply = await live.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert b" 400 " in reply.split(b"\r\n")[0] and b'"error"' in reply
