"""The scheduler under synthetic loads, thousands of steps a second: every request ends once, accounts add up, who is due comes first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.engine.policy import POLICIES
from tests.bench import simulate
from tests.bench.simulation import CostModel, Outcome, Simulation
from tests.bench.traces import WORKLOADS, Arrival, read_trace, workload


def run(arrivals: list[Arrival], **options: object) -> Outcome:
    """To the end, with all that must hold there."""
    simulation = Simulation(arrivals, **options)  # type: ignore[arg-type]
    outcome, scheduler = simulation.run(), simulation.scheduler
    assert outcome.n_finished + outcome.n_refused + outcome.n_expired == len(arrivals)
    assert sum(map(len, outcome.ttft.values())) == outcome.n_finished
    assert not scheduler.running and not scheduler.n_waiting and not scheduler.n_waiting_tokens and not scheduler.n_put_aside
    assert len(scheduler.policy) == 0 and not any(share.n_running or share.n_waiting for share in outcome.shares)
    assert all(seconds > 0 for values in outcome.ttft.values() for seconds in values)
    return outcome


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_request_ends_and_is_served_in_full(name: str, policy: str) -> None:
    arrivals = workload(name, 80, 0.8)
    outcome = run(arrivals, policy=policy)
    assert outcome.n_finished == len(arrivals) and outcome.n_output == sum(arrival.n_output for arrival in arrivals)
    n_prompt = sum(arrival.n_prompt for arrival in arrivals)
    # The last prompt token of a fully cached prompt goes beside the streams, and is counted there.
    assert n_prompt - len(arrivals) <= outcome.n_prompt + outcome.n_cached - outcome.n_recomputed <= n_prompt
    assert outcome.seconds >= max(arrival.at for arrival in arrivals)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("reserve", [0.0, 1.0])
def test_a_pool_that_cannot_hold_everybody_serves_everybody(policy: str, reserve: float) -> None:
    arrivals = [Arrival(at=0.1 * i, n_prompt=200, n_output=150, key=f"key {i % 3}") for i in range(40)]
    outcome = run(arrivals, policy=policy, n_ctx_pool=1200, reserve=reserve)
    assert outcome.n_finished == 40 and outcome.n_output == 40 * 150
    assert outcome.n_preemptions > 0 or reserve == 1.0


def test_a_full_queue_refuses_and_deadlines_end() -> None:
    arrivals = [Arrival(at=0.0, n_prompt=50, n_output=50, timeout=20.0) for _ in range(100)]
    outcome = run(arrivals, max_queue=60, n_slots=4, policy="fcfs")
    assert outcome.n_refused == 36 and outcome.n_expired > 0 and outcome.n_finished > 0
    assert outcome.seconds < 21


def test_a_shared_beginning_is_computed_once() -> None:
    arrivals = workload("shared", 32, 0.8)
    outcome = run(arrivals)
    assert outcome.n_prompt + outcome.n_cached >= 32 * 1019 and outcome.n_prompt < 2 * 1020 + 32 * 21 + 64


def test_the_light_key_hardly_waits_for_the_heavy_one() -> None:
    light = ("light", "normal")
    arrivals = workload("flood", 100, 0.8)
    worst = {policy: max(run(arrivals, policy=policy).ttft[light]) for policy in ("fair", "fcfs")}
    assert worst["fair"] < worst["fcfs"] / 10


def test_the_same_load_gives_the_same_run() -> None:
    first, second = (run(workload("classes", 60, 0.8)) for _ in range(2))
    assert (first.seconds, first.n_steps, first.ttft, first.gaps) == (second.seconds, second.n_steps, second.ttft, second.gaps)


def test_a_faster_machine_is_faster() -> None:
    arrivals = workload("burst", 40, 0.8)
    slow, fast = (run(arrivals, cost=CostModel(row=row)) for row in (0.02, 0.002))
    assert fast.seconds < slow.seconds and fast.gap(0.5) < slow.gap(0.5) <= slow.gap(1.0)


def test_traces_are_read_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [
        {"at": 2.0, "prompt": 30, "output": 5, "key": "anna", "priority": "interactive"},
        {"at": 0.5, "prompt": 300, "output": 8, "prefix": "manual", "shared": 200, "timeout": 30},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    first, second = read_trace(file)
    assert first == Arrival(at=0.5, n_prompt=300, n_output=8, prefix="manual", n_shared=200, timeout=30.0)
    assert second == Arrival(at=2.0, n_prompt=30, n_output=5, key="anna", priority="interactive")
    assert simulate.main(["--trace", str(file), "--policy", "fcfs", "--no-growth"]) == 0
    shown = capsys.readouterr().out
    assert "2 requests" in shown and "anna" in shown and "2, 0, 0" in shown


@pytest.mark.parametrize(
    "line", ['{"at": 1}', "[]", "{", '{"at": 0, "prompt": 0, "output": 1}', '{"at": 0, "prompt": 1, "output": 1, "priority": "x"}']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"at": 0, "prompt": 1, "output": 1}\n' + line)
    with pytest.raises(SystemExit, match=r"trace.jsonl:2"):
        read_trace(file)


def test_growth_has_a_row_for_each_size() -> None:
    shown = simulate.growth("fcfs", 4, sizes=(1, 30), n_steps=20)
    assert len(shown.splitlines()) == 4 and "| 30 " in shown
