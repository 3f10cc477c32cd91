"""The scheduler as it is, driven by arrivals and a model of what steps cost: no weights, no threads, and a clock that only adds up.

What is real: `Scheduler`, its policies, step plans and paced prefill. What is not: time, tokens, and the store, which counts cells.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from server.engine.kv import Attached, KvFigures
from server.engine.plan import Limits, StepPlan
from server.engine.policy import policy_named
from server.engine.ports import State
from server.engine.request import Sequence, WaitingRequest
from server.engine.reserve import Reserve
from server.engine.scheduler import Scheduler
from server.figures import KeyShare
from server.protocol import Flow, GenerationRequest
from server.tokens import common_prefix
from tests.bench.traces import Arrival

GAP_STEP = 1e-4
"""Seconds; gaps are counted in steps of so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds of a step: SmolLM2-135M (Q4_1) on two cores, unless told otherwise."""

    step: float = 0.0055
    row: float = 0.0066
    chunk: float = 0.004
    """For prompt tokens beside streams: a graph more."""
    prompt: float = 0.0046

    def seconds(self, n_decode: int, n_prefill: int) -> float:
        return self.step + self.row * n_decode + self.prompt * n_prefill + (self.chunk if n_decode and n_prefill else 0.0)


class SimulatedState:
    """Saved cells."""

    def __init__(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens

    @property
    def n_bytes(self) -> int:
        return self.n_tokens


class SimulatedStore:
    """A `KvStore` that counts. Prefixes are found in slots, idle or taken, and cost nothing to copy; host memory is without limit.

    `n_ctx_pool`: cells that all slots share (a copy takes cells of its own); None: each slot has `n_ctx_slot`.
    """

    def __init__(self, n_slots: int, n_ctx_slot: int, n_ctx_pool: int | None = None) -> None:
        self.n_ctx_slot, self.n_ctx_pool = n_ctx_slot, n_ctx_pool
        self._held = [0] * n_slots
        self._texts: list[tuple[str, list[int]] | None] = [None] * n_slots
        self._homes: dict[tuple[str, int], list[int]] = {}  # (namespace, first token) -> slots whose text begins so
        self._free = dict.fromkeys(range(n_slots))  # least recently used first
        self._n_used = 0

    def longest(self, namespace: str, tokens: Seq[int]) -> int:
        return self._best(namespace, list(tokens))[1]

    def _best(self, namespace: str, tokens: list[int]) -> tuple[int, int]:
        """(slot, cells) of the longest beginning; -1, 0 if there is none. Equal ones: a free slot."""
        best, most = -1, 0
        for slot in self._homes.get((namespace, tokens[0]), ()):
            text = self._texts[slot]
            assert text is not None
            n = min(common_prefix(text[1], tokens), len(tokens) - 1)
            if n > most or (n == most and slot in self._free):
                best, most = slot, n
        return best, most

    def room(self) -> int:
        if self.n_ctx_pool is None:
            return self.n_ctx_slot
        return self.n_ctx_pool - self._n_used + sum(self._held[slot] for slot in self._free)

    def attach(self, namespace: str, tokens: Seq[int], *, reuse: bool) -> Attached | None:
        if not self._free:
            return None
        source, n = self._best(namespace, list(tokens)) if reuse else (-1, 0)
        if source in self._free and n == self._held[source]:
            slot, n_copied = source, 0
        else:
            slot, n_copied = next((slot for slot in self._free if not self._held[slot]), next(iter(self._free))), n
        del self._free[slot]
        self._forget_text(slot)
        self._hold(slot, n)
        return Attached(slot, n, n_copied)

    def share(self, source: int, target: int, n_tokens: int) -> int:
        self._hold(target, n_tokens)
        return n_tokens

    def grew(self, slot: int, n_tokens: int) -> None:
        self._hold(slot, n_tokens)

    def cut(self, slot: int, n_tokens: int) -> int:
        self._hold(slot, min(n_tokens, self._held[slot]))
        return self._held[slot]

    def held(self, slot: int) -> int:
        return self._held[slot]

    def publish(self, slot: int, namespace: str, tokens: Seq[int]) -> None:
        self._forget_text(slot)
        self._texts[slot] = (namespace, list(tokens))
        self._homes.setdefault((namespace, tokens[0]), []).append(slot)

    def release(self, slot: int, namespace: str, tokens: Seq[int], *, keep: bool) -> None:
        self._forget_text(slot)
        self._free[slot] = None
        self._hold(slot, len(tokens) if keep else 0)
        if keep and tokens:
            self.publish(slot, namespace, tokens)

    def swap_out(self, slot: int) -> State | None:
        state = SimulatedState(self._held[slot])
        self.release(slot, "", (), keep=False)
        return state

    def swap_in(self, state: State | None, n_tokens: int) -> tuple[int, int] | None:
        attached = self.attach("", (0,), reuse=False)
        if attached is None:
            return None
        if state is not None:
            self._hold(attached.slot, n_tokens)
        return attached.slot, self._held[attached.slot]

    def forget(self, state: State | None) -> None:
        pass

    def make_room(self, n_cells: int) -> bool:
        if self.n_ctx_pool is None:
            return True
        for slot in list(self._free):
            if self._n_used + n_cells <= self.n_ctx_pool:
                break
            self._forget_text(slot)
            self._hold(slot, 0)
        return self._n_used + n_cells <= self.n_ctx_pool

    def hole(self) -> tuple[int, int] | None:
        return None

    def move(self, source: int, target: int) -> bool:
        return False

    def figures(self) -> KvFigures:
        n_cells = self.n_ctx_pool or len(self._held) * self.n_ctx_slot
        return KvFigures(self._n_used, n_cells, 0, 0, 0)

    def _hold(self, slot: int, n_tokens: int) -> None:
        self._n_used += n_tokens - self._held[slot]
        self._held[slot] = n_tokens

    def _forget_text(self, slot: int) -> None:
        text = self._texts[slot]
        if text is not None:
            namespace, tokens = text
            self._homes[namespace, tokens[0]].remove(slot)
            self._texts[slot] = None


@dataclass(slots=True)
class Outcome:
    """What came of a run. Seconds are simulated ones, but for `cpu` and `submit_cpu`."""

    seconds: float = 0.0
    n_steps: int = 0
    n_rows: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    n_finished: int = 0
    n_refused: int = 0
    n_expired: int = 0
    n_preemptions: int = 0
    n_recomputed: int = 0
    ttft: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """By key and class."""
    gaps: Counter[int] = field(default_factory=Counter)
    """Between two tokens of a stream, in `GAP_STEP`s."""
    output_of: Counter[str] = field(default_factory=Counter)
    shares: list[KeyShare] = field(default_factory=list)
    cpu: float = 0.0
    """What the run took on this machine, without submits."""
    submit_cpu: float = 0.0

    def gap(self, share: float) -> float:
        """Seconds that `share` (0 to 1) of all gaps do not exceed."""
        left = share * self.gaps.total()
        for steps in sorted(self.gaps):
            left -= self.gaps[steps]
            if left <= 0:
                return steps * GAP_STEP
        return 0.0


@dataclass(slots=True)
class _Stream:
    arrival: Arrival
    first_at: float = -1.0
    last_at: float = -1.0


class Simulation:
    """`arrivals` by time. `n_ctx_pool`: one pool of cells instead of a slot's own."""

    def __init__(
        self,
        arrivals: Seq[Arrival],
        *,
        policy: str = "fair",
        n_slots: int = 16,
        n_ctx_slot: int = 4096,
        n_ctx_pool: int | None = None,
        max_queue: int = 100_000,
        itl_target: float = 0.15,
        reserve: float = 0.25,
        cost: CostModel | None = None,
    ) -> None:
        self.now = 0.0
        self.outcome = Outcome()
        self.store = SimulatedStore(n_slots, n_ctx_slot, n_ctx_pool)
        limits = Limits(n_slots=n_slots, n_ctx_slot=n_ctx_slot, n_batch=2048, n_ubatch=512, max_output_rows=max(n_slots, 64))
        self.scheduler = Scheduler(
            limits, policy_named(policy), self.store, max_queue=max_queue, itl_target=itl_target, reserve=Reserve(reserve)
        )  # fmt: skip
        self._cost = cost or CostModel()
        self._arrivals = arrivals
        self._next = 0
        self._live: dict[int, _Stream] = {}
        self._flows = {key: Flow(key=key) for key in {arrival.key for arrival in arrivals}}
        self._prefixes: dict[str, list[int]] = {}

    def run(self, most_steps: int | None = None) -> Outcome:
        """Until all is over, or for `most_steps` steps.

        Raises:
            RuntimeError: requests are left, but the scheduler plans nothing.
        """
        outcome, scheduler = self.outcome, self.scheduler
        begun, submitted = time.process_time(), outcome.submit_cpu
        while most_steps is None or outcome.n_steps < most_steps:
            self._submit()
            self._expire()
            while scheduler.admit() is not None:
                pass
            for sequence in scheduler.settled():
                outcome.n_cached += sequence.n_cached
            scheduler.close_gaps()
            plan = scheduler.plan()
            if plan is not None:
                self._step(plan)
            elif self._next < len(self._arrivals):
                self.now = self._arrivals[self._next].at
            elif self._live:
                raise RuntimeError(f"{len(self._live)} requests are left, and the scheduler stands still")
            else:
                break
        outcome.cpu += time.process_time() - begun - (outcome.submit_cpu - submitted)
        outcome.seconds = self.now
        outcome.n_preemptions, outcome.n_recomputed = scheduler.counters.n_preemptions, scheduler.counters.n_recomputed
        outcome.shares = scheduler.policy.shares()
        return outcome

    def _submit(self) -> None:
        if self._next >= len(self._arrivals) or self._arrivals[self._next].at > self.now:
            return
        begun = time.process_time()
        while self._next < len(self._arrivals) and self._arrivals[self._next].at <= self.now:
            arrival, number = self._arrivals[self._next], self._next
            self._next += 1
            request = GenerationRequest(
                prompt="", max_tokens=arrival.n_output, priority=arrival.priority, flow=self._flows[arrival.key], timeout_s=arrival.timeout
            )  # fmt: skip
            if self.scheduler.submit(WaitingRequest(number, request, self._tokens(arrival, number), arrival.at, number)) is None:
                self.outcome.n_refused += 1
            else:
                self._live[number] = _Stream(arrival)
        self.outcome.submit_cpu += time.process_time() - begun

    def _tokens(self, arrival: Arrival, number: int) -> list[int]:
        """Different in all requests, but for the shared beginning."""
        if not arrival.n_shared:
            return [number] * arrival.n_prompt
        known = self._prefixes.setdefault(arrival.prefix, [])
        if len(known) < arrival.n_shared:
            known += [-1 - len(self._prefixes)] * (arrival.n_shared - len(known))
        return known[: arrival.n_shared] + [number] * (arrival.n_prompt - arrival.n_shared)

    def _expire(self) -> None:
        for request_id in self.scheduler.expired(self.now):
            if self.scheduler.withdraw(request_id) is None:
                self.scheduler.release(self.scheduler.running[request_id])
            del self._live[request_id]
            self.outcome.n_expired += 1

    def _step(self, plan: StepPlan) -> None:
        outcome, scheduler = self.outcome, self.scheduler
        seconds = self._cost.seconds(plan.n_decode, plan.n_prefill)
        self.now += seconds
        outcome.n_steps += 1
        outcome.n_rows += len(plan.rows)
        outcome.n_prompt += plan.n_prefill
        scheduler.cost.observe(plan.n_decode, plan.n_prefill, seconds)
        scheduler.advance(plan)
        for share in plan.shares:
            if share.row >= 0:
                self._say(share.sequence)

    def _say(self, sequence: Sequence) -> None:
        stream, now = self._live[sequence.id], self.now
        self.scheduler.said(sequence, 0)
        if stream.first_at < 0:
            stream.first_at = now
        else:
            self.outcome.gaps[int((now - stream.last_at) / GAP_STEP)] += 1
        stream.last_at = now
        if sequence.n_predicted >= stream.arrival.n_output or sequence.n_remain(self.store.n_ctx_slot) <= 0:
            self._finish(sequence, stream)

    def _finish(self, sequence: Sequence, stream: _Stream) -> None:
        self.scheduler.release(sequence)
        del self._live[sequence.id]
        outcome, arrival = self.outcome, stream.arrival
        outcome.n_finished += 1
        outcome.n_output += sequence.n_predicted
        outcome.output_of[arrival.key] += sequence.n_predicted
        outcome.ttft[arrival.key, arrival.priority].append(stream.first_at - arrival.at)
