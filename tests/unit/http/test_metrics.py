"""Numbers about requests, sequences and the engine, each where it belongs; names of routes never come from clients."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.errors import ServerBusy
from server.http.figures import EngineCollector
from server.protocol import EngineStats
from tests.unit.http.fakes import FakeRunner, says
from tests.unit.http.live import Live, running


async def samples(live: Live) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    status, content = await live.get("/metrics")
    assert status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(content.decode())
        for sample in family.samples
    }


@pytest.mark.asyncio
async def test_the_engines_numbers() -> None:
    async with running() as live:
        live.runner.restarts = 2
        found = await samples(live)
        for name, value in (
            ("capsule_requests_running", 1), ("capsule_requests_waiting", 2), ("capsule_kv_used_tokens", 30),
            ("capsule_kv_total_tokens", 8192), ("capsule_prompt_tokens_total", 7), ("capsule_generated_tokens_total", 9),
            ("capsule_cached_tokens_total", 0), ("capsule_runner_restarts_total", 2), ("capsule_runner_up", 1),
            ("capsule_step_seconds_total", 0), ("capsule_decode_seconds_total", 0),
        ):  # fmt: skip
            assert found[name, ()] == value
        assert found["capsule_build_info", (("model", "tiny"), ("version", "1.2.3"))] == 1
        live.runner.stats = EngineStats()
        assert (await samples(live))["capsule_requests_waiting", ()] == 0


def test_every_number_of_the_engine_is_shown_once_under_its_own_name() -> None:
    names = EngineStats.__struct_fields__
    runner = FakeRunner()
    runner.stats = EngineStats(**{name: i for i, name in enumerate(names, 100)})
    values = [sample.value for metric in EngineCollector(runner).collect() for sample in metric.samples]
    assert sorted(value for value in values if value >= 100) == list(range(100, 100 + len(names)))
    assert len({metric.name for metric in EngineCollector(runner).collect()}) == len(values)


@pytest.mark.asyncio
async def test_sequences_and_requests_are_counted_once() -> None:
    async with running() as live:
        live.runner.script = says("a", "b", "c", reason="length", stop_type="limit")
        await live.post("/v1/completions", {"prompt": "x", "n": 2})
        live.runner.refusal = ServerBusy("full")
        await live.post("/v1/completions", {"prompt": "x", "stream": True})
        await live.post("/v1/completions", {})
        await live.ask("PATCH", "/v1/completions")
        await live.get("/somewhere/else")
        found = await samples(live)
    assert found["capsule_generations_total", (("finish_reason", "length"), ("priority", "normal"))] == 2
    assert found["capsule_generations_total", (("finish_reason", "error"), ("priority", "normal"))] == 1
    assert found["capsule_refusals_total", (("reason", "queue_full"),)] == 1
    for name, count in (("time_to_first_token", 2), ("inter_token", 4)):
        assert found[f"capsule_{name}_seconds_count", ()] == count
    assert found["capsule_queue_seconds_count", (("priority", "normal"),)] == 2
    by_status = {
        status: found["capsule_requests_total", (("method", "POST"), ("route", "/v1/completions"), ("status", status))]
        for status in ("200", "503", "400")
    }
    assert by_status == {"200": 1, "503": 1, "400": 1}
    assert found["capsule_requests_total", (("method", "GET"), ("route", "unknown"), ("status", "404"))] == 1
    assert found["capsule_requests_total", (("method", "other"), ("route", "unknown"), ("status", "405"))] == 1
    assert not any("somewhere" in str(key) for key in found)


@pytest.mark.asyncio
async def test_switched_off() -> None:
    async with running(metrics=False) as live:
        status, reply = await live.get("/metrics")
        assert status == 404 and "--metrics" in reply["error"]["message"]
