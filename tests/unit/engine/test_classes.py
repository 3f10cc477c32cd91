"""A class is owed its share of what is served while it waits, and pays for what it takes beyond, unless nobody above wanted it."""

from __future__ import annotations

import pytest

from server.engine.classes import MOST_SAVED, SHARES, Credits, Paid
from server.requests import CLASSES

INTERACTIVE, NORMAL, BATCH = range(3)
ALL, NONE = [True] * 3, [False] * 3


def serve(credits: Credits, paid: Paid, cost: float, waiting: list[bool] = ALL) -> None:
    credits.charge(paid, cost)
    credits.settle(waiting, NONE)


def owed(amount: float) -> Credits:
    """Batch has saved up `amount`."""
    credits = Credits()
    serve(credits, Paid(INTERACTIVE), amount / SHARES[BATCH], [True, False, True])
    assert credits.saved == [0.0, 0.0, pytest.approx(amount)]
    return credits


def due(credits: Credits, price: float, waiting: list[bool] = ALL) -> str:
    return CLASSES[credits.due(waiting, lambda rank: price)]


def test_the_shares_are_the_documented_ones() -> None:
    assert [round(share * 21) for share in SHARES] == [16, 4, 1] and sum(SHARES) == pytest.approx(1.0)


def test_a_class_goes_once_it_has_saved_the_price() -> None:
    assert due(Credits(), 1.0) == "interactive" and due(Credits(), 1.0, [False, True, True]) == "normal"
    credits = owed(100.0)
    assert due(credits, 100.0) == "batch" and due(credits, 101.0) == "interactive" and due(credits, 101.0, [False, False, True]) == "batch"
    assert due(owed(MOST_SAVED), 1e9) == "batch", "a price beyond what can be saved is paid afterwards"


def test_nothing_is_saved_without_waiting_and_no_more_than_the_most() -> None:
    credits = Credits()
    serve(credits, Paid(INTERACTIVE), 1e9, [True, False, True])
    assert credits.saved == [0.0, 0.0, MOST_SAVED]
    credits.idle(BATCH)
    assert credits.saved == [0.0, 0.0, 0.0]


def test_the_price_is_set_aside_at_the_start_and_what_is_left_comes_back() -> None:
    credits = owed(300.0)
    paid = credits.start(BATCH, 300.0, ALL)
    assert (paid.overtook, paid.left) == (True, 300.0) and due(credits, 300.0) == "interactive"
    serve(credits, paid, 100.0)
    assert credits.saved[BATCH] == pytest.approx(100.0 * SHARES[BATCH]), "paid for already"
    credits.stop(paid)
    assert credits.saved[BATCH] == pytest.approx(200.0 + 100.0 * SHARES[BATCH]) and paid.left == 0.0


def test_an_overtaker_that_costs_more_than_expected_leaves_a_debt() -> None:
    credits = owed(300.0)
    paid = credits.start(BATCH, 300.0, ALL)
    serve(credits, paid, 1000.0)
    assert credits.saved[BATCH] == pytest.approx(-700.0 + 1000.0 * SHARES[BATCH])
    serve(credits, Paid(BATCH), 500.0, [False, False, True])
    assert credits.saved[BATCH] == pytest.approx(-200.0 + 1500.0 * SHARES[BATCH]), "paid back while nobody above waits"
    serve(credits, Paid(BATCH), 500.0, [False, False, False])
    assert credits.saved[BATCH] == 0.0


def test_what_nobody_above_waited_for_leaves_no_debt() -> None:
    credits = Credits()
    free = credits.start(BATCH, 300.0, [False, False, True])
    assert not free.overtook
    serve(credits, free, 5000.0, [False, False, True])
    serve(credits, free, 5000.0, [True, True, False])
    assert credits.saved[BATCH] == 0.0, "it goes on beside those who came later"
    paid = credits.start(BATCH, 0.0, ALL)
    serve(credits, paid, 100.0, [False, False, False])
    assert credits.saved[BATCH] == 0.0


def test_what_is_taken_freely_uses_up_what_was_saved() -> None:
    credits = owed(300.0)
    serve(credits, Paid(BATCH), 200.0, [True, True, False])
    assert credits.saved[BATCH] == pytest.approx(100.0)
