"""fcfs serves by time of submission, also where tokenising took longer, and an unknown policy is an operator's mistake."""

from __future__ import annotations

import random

import pytest

from server.engine.policy import policy_named
from server.engine.request import WaitingRequest
from server.errors import OperatorError
from server.protocol import GenerationRequest


def waiting(order: int) -> WaitingRequest:
    return WaitingRequest(order, GenerationRequest(prompt="x"), [1], 0.0, order)


def test_fcfs_is_by_order_of_submission() -> None:
    policy = policy_named("fcfs")
    assert [policy.add(waiting(order)) for order in (0, 2, 3, 1)] == [0, 1, 2, 1]
    assert [policy.pop().order for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(IndexError):
        policy.pop()


def test_any_can_be_taken_out() -> None:
    policy = policy_named("fcfs")
    requests = [waiting(order) for order in range(50)]
    for request in requests:
        policy.add(request)
    gone = random.Random(1).sample(requests, 30)
    for request in gone:
        policy.remove(request)
    assert list(policy) == [request for request in requests if request not in gone] and len(policy) == 20


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(OperatorError) as caught:
        policy_named("lottery")
    assert "lottery" in caught.value.message and "fcfs" in caught.value.hint


def test_a_waiting_request_keeps_no_text() -> None:
    assert WaitingRequest(1, GenerationRequest(prompt="secret"), [1], 0.0, 1).request.prompt == ""
