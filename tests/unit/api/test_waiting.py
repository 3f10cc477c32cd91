"""Who waits hears where, in comments and, on request, in events; whose time is up gets what there is, or hears that it was for nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.timing import joined, timings_json
from server.api.waiting import Waiting
from server.errors import DeadlineExceeded
from server.http.ports import Progress
from server.protocol import Delta, Finished, Queued, Started, Timings
from tests.unit.http.fakes import finished
from tests.unit.http.live import Live, events, running

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "x"},
    "/completion": {"prompt": "x"},
}
STEPS: list[Any] = [Queued(1, 3, 5, 12.54), Queued(1, 1, 5), Queued(1, 0, 5, 0.7), Started(1, 0, 5, 0), Delta(1, "a"), finished(1)]
TIMEOUT = finished(1, reason="length", stop_type="timeout")


async def ask(live: Live, path: str, **members: Any) -> tuple[int, Any, Mapping[str, str]]:
    body = msgspec.json.encode({**BODIES[path], **members})
    status, content, headers = await live.ask("POST", path, data=body)
    return status, content, headers


def comments(content: bytes) -> list[str]:
    return re.findall(r"^: (.*)\n\n", content.decode(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.asyncio
async def test_comments_tell_every_place_and_headers_the_first(path: str) -> None:
    async with running() as live:
        live.runner.script = lambda request: STEPS
        status, content, headers = await ask(live, path, stream=True)
    assert status == 200
    assert comments(content) == ["queue position=3 eta=12.5", "queue position=1", "queue position=0 eta=0.7"]
    assert (headers["X-Queue-Position"], headers["X-Queue-Eta"]) == ("3", "12.5")
    assert b'"queue"' not in content


@pytest.mark.asyncio
async def test_where_a_slot_is_free_nobody_waits() -> None:
    async with running() as live:
        for path in BODIES:
            status, content, headers = await ask(live, path, stream=True)
            assert status == 200 and not any("queue" in text for text in comments(content)) and "X-Queue-Position" not in headers


@pytest.mark.asyncio
async def test_an_unknown_wait_has_no_eta() -> None:
    async with running() as live:
        live.runner.script = lambda request: [Queued(1, 0, 5), *STEPS[3:]]
        _, content, headers = await ask(live, "/completion", stream=True)
        assert comments(content) == ["queue position=0"] and headers["X-Queue-Position"] == "0" and "X-Queue-Eta" not in headers


@pytest.mark.asyncio
async def test_the_place_is_told_again_in_silence_until_it_starts() -> None:
    async with running(sse_ping_interval=0.1) as live:
        live.runner.script = lambda request: [Queued(1, 2, 5, 4.0), 0.35, Started(1, 0, 5, 0), 0.35, finished(0)]
        _, content, _ = await ask(live, "/completion", stream=True)
    told = comments(content)
    assert told[:2] == ["queue position=2 eta=4.0"] * 2 and told[-1] == "ping"
    assert told == sorted(told, reverse=True), "no place is told once it runs"


@pytest.mark.parametrize("members", [{"return_queue": True}, {"stream_options": {"include_queue": True}}])
@pytest.mark.asyncio
async def test_places_as_events_on_request(members: dict[str, Any]) -> None:
    expected = [{"position": 3, "eta_s": 12.54}, {"position": 1, "eta_s": None}, {"position": 0, "eta_s": 0.7}]
    async with running() as live:
        live.runner.script = lambda request: STEPS
        for path in BODIES:
            _, content, _ = await ask(live, path, stream=True, **members)
            told = [chunk for chunk in events(content) if "queue" in chunk]
            assert [chunk["queue"] for chunk in told] == expected
            for chunk in told:
                if path == "/completion":
                    assert (chunk["content"], chunk["stop"]) == ("", False)
                else:
                    assert [choice["finish_reason"] for choice in chunk["choices"]] == [None], "clients look at choices[0]"
                    assert not chunk["choices"][0].get("text") and not chunk["choices"][0].get("delta")
        status, reply, _ = await ask(live, "/completion", **members)
        assert status == 200 and "queue" not in reply


@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.asyncio
async def test_an_answer_cut_by_its_deadline(path: str) -> None:
    async with running() as live:
        live.runner.script = lambda request: [Queued(1, 0, 5, 0.0), Started(1, 0, 5, 0), Delta(1, "Hel"), TIMEOUT]
        status, whole, _ = await ask(live, path, timeout=0.5)
        assert status == 200, whole
        _, content, _ = await ask(live, path, timeout=0.5, stream=True, stream_options={"include_usage": True})
    chunks = [chunk for chunk in events(content) if chunk != "[DONE]"]
    if path == "/completion":
        assert whole["content"] == "Hel" and whole["stop_type"] == chunks[-1]["stop_type"] == "timeout"
        assert whole["tokens_predicted"] == 1 and whole["generation_settings"]["timeout"] == 0.5
        return
    assert chunks[-1]["usage"] == whole["usage"] and whole["usage"]["completion_tokens"] == 1
    for choice in (whole["choices"][0], chunks[-2]["choices"][0]):
        assert (choice["finish_reason"], choice["stop_type"]) == ("length", "timeout")


@pytest.mark.asyncio
async def test_other_ends_say_nothing_of_time() -> None:
    async with running() as live:
        live.runner.script = lambda request: [Queued(1, 0, 5, 0.0), Delta(1, "x"), finished(1, reason="length", stop_type="limit")]
        _, reply, _ = await ask(live, "/v1/completions")
        assert reply["choices"][0]["finish_reason"] == "length" and "stop_type" not in reply["choices"][0]


@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.asyncio
async def test_a_deadline_in_the_queue(path: str) -> None:
    error = DeadlineExceeded("its time was up before it could start", retry_after=9.2)
    async with running() as live:
        live.runner.script = lambda request: [Queued(1, 3, 5, 60.0), error]
        status, reply, headers = await ask(live, path, timeout=0.5)
        assert (status, reply["error"]["code"], headers["Retry-After"]) == (503, "deadline_exceeded", "10")
        status, content, _ = await ask(live, path, timeout=0.5, stream=True)
        assert status == 200 and events(content)[-1]["error"]["code"] == "deadline_exceeded"
        assert live.context.metrics.render().count(b'capsule_refusals_total{reason="deadline_exceeded"} 2.0') == 1


def test_guesses_and_preemptions_are_told_where_there_were_any() -> None:
    extra = {"draft_n", "draft_n_accepted", "n_preemptions"}
    assert not extra & timings_json(Timings()).keys()
    both = joined([Timings(draft_n=6, draft_n_accepted=4, n_preemptions=1), Timings(draft_n=2)])
    shown = timings_json(both)
    assert (shown["draft_n"], shown["draft_n_accepted"], shown["n_preemptions"]) == (8, 4, 1)
    useless = timings_json(Timings(draft_n=3))
    assert useless["draft_n_accepted"] == 0 and "n_preemptions" not in useless


_MOVES = st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 9), st.none() | st.sampled_from([0.0, 1.0, 2.5])), max_size=30)


@given(_MOVES)
def test_the_foremost_speaks_for_all(moves: list[tuple[int, int | None, float | None]]) -> None:
    """`None` for a position: it starts."""
    waiting, places, told = Waiting(), dict[int, Queued](), "ping"
    for index, position, eta in moves:
        event: Progress = Started(1, 0, 5, 0)
        if position is None:
            places.pop(index, None)
        else:
            event = places[index] = Queued(1, position, 5, eta)
        is_new = waiting.event(index, event)
        foremost = min((place.position for place in places.values()), default=None)
        shown = waiting.place
        if shown is None:
            assert not is_new and waiting.text == "ping" and not waiting.headers
            assert foremost is None or any(place.position == 0 and place.eta_s == 0 for place in places.values())
        else:
            assert shown in places.values() and shown.position == foremost
            assert waiting.headers["X-Queue-Position"] == str(foremost) and f"position={foremost}" in waiting.text
            assert is_new == (waiting.text != told)
        told = waiting.text


def test_any_other_event_ends_the_wait() -> None:
    end = TIMEOUT
    assert isinstance(end, Finished)
    for event in (Started(1, 0, 5, 0), Delta(1, "x"), end):
        waiting = Waiting()
        assert waiting.event(0, Queued(1, 2, 5)) and waiting.place is not None
        assert not waiting.event(0, event) and waiting.place is None
