"""Limits of keys and of the queue: exact under any interleaving, back to zero however a request ends, and cheap to refuse."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ClientError, RateLimited, ServerBusy
from server.http.errors import error_response
from server.http.ledger import WINDOW_SECONDS, Ledger, Place
from server.http.limits import LEDGER, TICKET, admit, check, release
from server.protocol import Delta, Queued, Started
from server.window import SlidingSum
from tests.unit.http.fakes import INFO, finished
from tests.unit.http.mocked import Site, key

N_SLOTS = INFO.n_slots


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def site(*keys: Any, clock: Clock | None = None, **settings: Any) -> Site:
    made = Site(keys, **settings)
    made.app[LEDGER] = Ledger(clock or Clock())
    return made


def enter(request: web.Request, n: int = 1, chars: int = 40) -> list[Place]:
    """Admit and take the places, as the sequences would."""
    admit(request, n_sequences=n, n_chars=chars)
    places = [request[TICKET].take() for _ in range(n)]
    assert all(places)
    return [place for place in places if place is not None]


def counts(made: Site, name: str | None = None) -> tuple[int, int, int]:
    account = made.app[LEDGER].total if name is None else made.app[LEDGER].of(name)
    return account.waiting, account.running, account.waiting_tokens


def test_a_sequence_waits_runs_and_is_over() -> None:
    made = site(key("k"))
    (place,) = enter(made.request(key("k")), chars=400)
    assert counts(made) == counts(made, "k") == (1, 0, 100)
    place.event(Queued(1, 0, 70))
    assert counts(made) == (1, 0, 70)
    place.event(Started(1, 0, 70, 0))
    assert counts(made) == counts(made, "k") == (0, 1, 0)
    place.event(Started(1, 0, 70, 0))
    place.event(finished(5, n_prompt=70))
    place.leave()
    assert counts(made) == counts(made, "k") == (0, 0, 0)
    assert made.app[LEDGER].of("k").used.sum(1000) == 75


def test_the_queue_takes_slots_and_max_queue_and_says_so() -> None:
    made = site(max_queue=2)
    made.runner.stats = msgspec.structs.replace(made.runner.stats, retry_after_s=7.2)
    for _ in range(N_SLOTS + 2):
        check(made.request())
        enter(made.request())
    for refuse in (check, enter):
        with pytest.raises(ServerBusy) as refused:
            refuse(made.request())
        response = error_response(refused.value)
        assert response.status == 503 and response.headers["Retry-After"] == "8"
        assert isinstance(response.body, bytes)
        body = msgspec.json.decode(response.body)["error"]
        assert (body["code"], body["limit"], body["waiting"], body["position"]) == ("queue_full", 2, 2, 2)


def test_a_request_of_more_sequences_than_ever_fit_is_its_own_mistake() -> None:
    made = site(max_queue=2)
    enter(made.request(), N_SLOTS + 2)
    with pytest.raises(ServerBusy):
        enter(made.request(), 1)
    with pytest.raises(ClientError, match=f"the {N_SLOTS + 2} that"):
        enter(made.request(), N_SLOTS + 3)


def test_no_queue_still_fills_the_slots() -> None:
    made = site(max_queue=0)
    for _ in range(N_SLOTS):
        enter(made.request())
    with pytest.raises(ServerBusy):
        enter(made.request())


def test_prompt_tokens_that_wait() -> None:
    made = site(max_queue_tokens=100)
    for _ in range(N_SLOTS - 1):
        enter(made.request(), chars=4000)[0].event(Started(1, 0, 60, 0))
    (huge,) = enter(made.request(), chars=4000)
    with pytest.raises(ServerBusy, match="1000 prompt tokens are waiting, and the request has about 11;"):
        enter(made.request(), chars=44)
    huge.event(Queued(1, 0, 60))
    enter(made.request(), chars=120)
    with pytest.raises(ServerBusy) as refused:
        enter(made.request(), chars=44)
    assert refused.value.extra == {"waiting": 90, "limit": 100, "position": 2}
    huge.event(Started(1, 0, 60, 0))
    enter(made.request())


def test_prompt_tokens_do_not_wait_where_slots_are_free() -> None:
    made = site(max_queue_tokens=100)
    for _ in range(N_SLOTS):
        enter(made.request(), chars=4000)
    with pytest.raises(ServerBusy, match="--max-queue-tokens"):
        enter(made.request(), chars=4)


def test_a_refusal_counts_those_in_the_queue_and_not_those_that_have_a_slot() -> None:
    made = site(max_queue=2)
    for _ in range(N_SLOTS + 2):
        enter(made.request())
    with pytest.raises(ServerBusy, match="2 requests are queued; the queue takes 2") as refused:
        enter(made.request())
    assert refused.value.extra == {"waiting": 2, "limit": 2, "position": 2}
    with pytest.raises(ServerBusy, match=f"{N_SLOTS + 2} of {N_SLOTS + 2} places are taken .* needs 2"):
        enter(made.request(), 2)


def test_a_key_may_have_so_many_waiting_and_another_is_not_touched() -> None:
    small, other = key("small", queued=2), key("other")
    made = site(small, other)
    for _ in range(N_SLOTS + 2):
        enter(made.request(small))
    with pytest.raises(RateLimited) as refused:
        enter(made.request(small))
    response = error_response(refused.value)
    assert response.status == 429 and response.headers["Retry-After"] == "1"
    assert refused.value.extra == {"limited": "queued", "limit": 2, "value": N_SLOTS + 2, "position": N_SLOTS + 2}
    assert (refused.value.type, refused.value.code, refused.value.reason) == ("rate_limit_error", "rate_limit_exceeded", "key_queued")
    enter(made.request(other))


def test_slots_that_others_hold_or_that_the_key_may_not_have_are_not_counted_for_it() -> None:
    small, other = key("small", queued=1, running=2), key("other")
    made = site(small, other)
    for _ in range(3):
        enter(made.request(small))
    with pytest.raises(RateLimited):
        enter(made.request(small))
    made = site(small, other)
    for place in (enter(made.request(other))[0] for _ in range(N_SLOTS)):
        place.event(Started(1, 0, 5, 0))
    enter(made.request(small))
    with pytest.raises(RateLimited):
        enter(made.request(small))


def test_nothing_of_it_may_wait() -> None:
    impatient = key("impatient", queued=0)
    made = site(impatient)
    places = [enter(made.request(impatient))[0] for _ in range(N_SLOTS)]
    for place in places:
        place.event(Started(1, 0, 5, 0))
    with pytest.raises(RateLimited):
        enter(made.request(impatient))
    places[0].leave()
    enter(made.request(impatient))


def test_tokens_of_a_minute() -> None:
    clock, metered = Clock(), key("metered", tpm=100)
    made = site(metered, clock=clock)
    (place,) = enter(made.request(metered))
    place.event(Started(1, 0, 60, 0))
    clock.now += 10
    check(made.request(metered))
    place.event(finished(40))
    with pytest.raises(RateLimited) as refused:
        check(made.request(metered))
    assert refused.value.extra == {"limited": "tpm", "limit": 100, "value": 100, "position": 0}
    assert 50 <= refused.value.retry_after <= 52, "the prompt is forgotten first, and that is enough"
    clock.now += refused.value.retry_after
    check(made.request(metered))
    made.app[LEDGER].of("metered").used.add(clock.now, 60)
    with pytest.raises(RateLimited):
        check(made.request(metered))


def test_who_leaves_before_the_end_is_charged_for_what_was_generated() -> None:
    made = site(key("k"))
    (place,) = enter(made.request(key("k")))
    place.event(Started(1, 0, 10, 0))
    for tokens in ((), (), (7, 8)):
        place.event(Delta(1, "x", tokens))
    place.leave()
    assert made.app[LEDGER].of("k").used.sum(1000) == 14


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 50)), max_size=60), st.integers(1, 400))
def test_a_window_holds_a_minute_exactly_to_the_second(steps: list[tuple[float, int]], limit: int) -> None:
    window, now, added = SlidingSum(WINDOW_SECONDS), 0.0, list[tuple[float, int]]()
    for wait, n in steps:
        now += wait
        window.add(now, n)
        added.append((now, n))
        low = sum(n for when, n in added if when > now - 60)
        high = sum(n for when, n in added if when > now - 61.001)
        assert low <= window.sum(now) <= high
        assert len(window._seconds) <= 62
    left = window.seconds_until_below(now, limit)
    assert (left == 0) == (window.sum(now) < limit) and window.sum(now + left) < limit


@given(st.lists(st.tuples(st.sampled_from(["enter", "queue", "start", "finish", "leave", "close"]), st.integers(0, 5)), max_size=80))
def test_counts_are_right_after_any_history_and_zero_at_its_end(history: list[tuple[str, int]]) -> None:
    made, holder = site(key("k"), max_queue=50), key("k")
    requests: list[web.Request] = []
    places: list[Place] = []
    for what, which in history:
        if what == "enter" and len(places) < 50:
            requests.append(made.request(holder))
            places += enter(requests[-1], which + 1)[: which or 1]
        elif what == "close" and requests:
            requests[which % len(requests)][TICKET].close()
        elif places:
            place = places[which % len(places)]
            match what:
                case "queue":
                    place.event(Queued(1, 0, which))
                case "start":
                    place.event(Started(1, 0, which, 0))
                case "finish":
                    place.event(finished(which))
                case "leave":
                    place.leave()
        waiting, running, tokens = counts(made, "k")
        assert waiting >= 0 and running >= 0 and tokens >= 0 and counts(made) == (waiting, running, tokens)
    for request in requests:
        request[TICKET].close()
    assert counts(made) == counts(made, "k") == (0, 0, 0)


@pytest.mark.parametrize("failure", [None, ClientError("no"), ConnectionResetError(), KeyError("bug")])
@pytest.mark.asyncio
async def test_places_are_given_back_however_the_request_ends(failure: Exception | None) -> None:
    made = site(key("k"))
    request = made.request(key("k"))

    async def handler(request: web.Request) -> web.StreamResponse:
        admit(request, n_sequences=3, n_chars=9)
        place = request[TICKET].take()
        assert place is not None and counts(made, "k")[0] == 3
        place.event(Started(1, 0, 4, 0))
        if failure is not None:
            raise failure
        return web.Response()

    try:
        await release(request, handler)
    except Exception as error:
        assert error is failure
    assert counts(made) == counts(made, "k") == (0, 0, 0)


def test_ten_thousand_refusals_leave_no_trace() -> None:
    made, holder = site(key("k", queued=1), max_queue=0), key("k", queued=1)
    enter(made.request(holder), N_SLOTS)
    request = made.request(holder)

    def refuse(times: int) -> None:
        for _ in range(times):
            with pytest.raises((RateLimited, ServerBusy)):
                admit(request, n_sequences=2, n_chars=1000)

    refuse(100)
    before = counts(made)
    tracemalloc.start()
    try:
        gc.collect()
        at_first, _ = tracemalloc.get_traced_memory()
        refuse(10_000)
        gc.collect()
        at_last, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counts(made) == before and at_last - at_first < 20_000
