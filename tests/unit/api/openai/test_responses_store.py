"""What is kept stays within its bounds, is seen by its owner alone, and goes oldest first from whoever holds most."""

from __future__ import annotations

import secrets
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.api.openai.responses_store import ResponseStore


def response(name: str, text: str = "x") -> dict[str, Any]:
    return {"id": name, "output": [{"id": f"msg_{name}", "text": text}]}


def inputs(name: str) -> list[dict[str, Any]]:
    return [{"id": f"in_{name}", "text": "question"}]


def test_what_is_kept_comes_back_to_its_owner_alone() -> None:
    store = ResponseStore(10)
    assert store.put("a", response("r1"), inputs("r1"))
    found = store.get("a", "r1")
    assert found is not None and found.response == response("r1") and found.items == [*inputs("r1"), *response("r1")["output"]]
    assert store.item("a", "msg_r1") == response("r1")["output"][0] and store.item("a", "in_r1") == inputs("r1")[0]
    for owner, name in (("b", "r1"), ("a", "r2"), ("", "r1")):
        assert store.get(owner, name) is None and store.item(owner, f"msg_{name}") is None and not store.delete(owner, name)
    assert store.delete("a", "r1") and not store.delete("a", "r1") and store.get("a", "r1") is None
    assert (store.n_responses, store.n_bytes) == (0, 0)


def test_off() -> None:
    store = ResponseStore(0)
    assert not store.put("a", response("r1"), []) and store.get("a", "r1") is None and store.n_bytes == 0


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(2)
    for name in ("r1", "r2"):
        store.put("a", response(name), [])
    assert store.get("a", "r1") is not None
    store.put("a", response("r3"), [])
    assert store.get("a", "r2") is None and store.get("a", "r1") is not None and store.get("a", "r3") is not None


def test_nobody_pushes_out_what_is_anothers() -> None:
    store = ResponseStore(5, 20_000)
    store.put("quiet", response("q"), inputs("q"))
    for i in range(100):
        store.put("loud", response(f"r{i}", "x" * 500), inputs("r"))
    assert store.get("quiet", "q") is not None and store.n_responses == 5
    for i in range(100):
        store.put("large", response(f"l{i}", "x" * 9_000), [])
        assert store.n_bytes <= 20_000
    assert store.get("quiet", "q") is not None and store.get("large", "l99") is not None


def test_what_is_too_large_is_not_kept() -> None:
    store = ResponseStore(5, 1000)
    assert not store.put("a", response("r1", "x" * 1000), [])
    assert store.n_responses == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(1, 400), st.booleans()), max_size=60))
def test_the_account_is_right(steps: list[tuple[str, int, int, bool]]) -> None:
    store = ResponseStore(4, 1500)
    for owner, number, size, keeps in steps:
        if keeps:
            kept = store.put(owner, response(f"r{number}", "x" * size), [])
            assert kept == (store.get(owner, f"r{number}") is not None)
        else:
            store.delete(owner, f"r{number}")
        held = [stored for name in "abc" for i in range(10) if (stored := store.get(name, f"r{i}")) is not None]
        assert len(held) == store.n_responses <= 4 and sum(stored.n_bytes for stored in held) == store.n_bytes <= 1500


def test_text_of_any_kind_comes_back() -> None:
    store = ResponseStore(1)
    text = "é\u2028\x00" + secrets.token_hex(8)
    store.put("", response("r", text), [])
    found = store.get("", "r")
    assert found is not None and found.response["output"][0]["text"] == text
