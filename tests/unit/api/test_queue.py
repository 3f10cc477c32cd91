"""GET /queue: order, waits and rates for everybody; whose they are only for an admin, or where there are no keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.http.live import running


@pytest.mark.asyncio
async def test_without_keys_all_is_shown() -> None:
    async with running() as live:
        status, reply = await live.get("/queue")
    assert status == 200
    assert (reply["policy"], reply["n_running"], reply["n_waiting"], reply["n_waiting_tokens"]) == ("fair", 6, 3, 180)
    assert reply["rates"] == {"prompt_tokens_per_second": 200.0, "generated_tokens_per_second": 50.0, "requests_per_second": 0.5}
    assert reply["waiting"][0] == {
        "id": 4, "position": 0, "priority": "interactive", "key": "key 1", "n_prompt_tokens": 50,
        "waited_seconds": 1.5, "eta_seconds": 0.5, "is_preempted": False,
    }  # fmt: skip
    assert reply["waiting"][1]["is_preempted"] and reply["waiting"][1]["eta_seconds"] is None
    assert [row["n_listed"] for row in reply["classes"]] == [1, 0, 2] and reply["retry_after_seconds"] == 1.0


@pytest.mark.asyncio
async def test_a_key_sees_its_own_name_and_nobody_elses() -> None:
    async with running(api_key="first-secret,second-secret,third-secret") as live:
        assert (await live.get("/queue"))[0] == 401
        status, reply = await live.get("/queue", X_Api_Key="second-secret")
    assert status == 200 and "secret" not in str(reply)
    assert [entry["key"] for entry in reply["waiting"]] == ["other", "key 2", "other"]
    assert reply["keys"] == [
        {"key": "other", "n_running": 4, "n_waiting": 2, "served": 40.0},
        {"key": "key 2", "n_running": 2, "n_waiting": 1, "served": 20.0},
    ]


@pytest.mark.asyncio
async def test_an_admin_sees_all_names(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("sk-boss boss - - admin\nsk-user user\n")
    async with running(api_key_file=str(file)) as live:
        _, boss = await live.get("/queue", X_Api_Key="sk-boss")
        _, user = await live.get("/queue", X_Api_Key="sk-user")
    assert [row["key"] for row in boss["keys"]] == ["key 1", "key 2", "key 3"]
    assert [row["key"] for row in user["keys"]] == ["other"]


@pytest.mark.asyncio
async def test_it_goes_with_the_slots() -> None:
    async with running(slots=False) as live:
        status, reply = await live.get("/queue")
        assert status == 404 and "--slots" in reply["error"]["message"]
