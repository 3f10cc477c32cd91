"""A house of slots around a policy: starts, computes, ends and puts aside like the scheduler, without cells, text or clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from server.engine.policy import Policy, policy_named
from server.engine.request import Entry, PutAside, Sequence, WaitingRequest, start
from server.protocol import GenerationRequest
from server.requests import Flow, Priority


def nothing(entry: Entry) -> int:
    """Nothing is cached."""
    return 0


def entry(
    order: int,
    n_prompt: int = 1,
    *,
    max_tokens: int = -1,
    priority: Priority = "normal",
    key: str = "",
    weight: float = 1.0,
    max_running: int = 0,
    address: str = "",
    session: str = "",
) -> WaitingRequest:
    """A waiting request whose id is its order of submission."""
    flow = Flow(key=key, weight=weight, max_running=max_running, address=address, session=session)
    request = GenerationRequest(prompt="", max_tokens=max_tokens, priority=priority, flow=flow)
    return WaitingRequest(order, request, [0] * n_prompt, 0.0, order)


class House:
    """`served[id]` is what a request was charged (weighted tokens); `started` and `put_aside` are ids in order of their happening."""

    def __init__(
        self,
        policy: str | Policy = "fair",
        *,
        n_slots: int = 4,
        budget: int = 64,
        max_preemptions: int = 3,
        cached: Callable[[Entry], int] = nothing,
    ) -> None:
        self.policy = policy_named(policy, max_preemptions=max_preemptions) if isinstance(policy, str) else policy
        self.n_slots, self.budget, self.cached = n_slots, budget, cached
        self.waiting: dict[int, Entry] = {}
        self.running: dict[int, Sequence] = {}
        self.n_output: dict[int, int] = {}
        self.requests: dict[int, GenerationRequest] = {}
        self.served: dict[int, float] = defaultdict(float)
        self.started: list[int] = []
        self.ended: list[int] = []
        self.put_aside: list[int] = []
        self.n_steps = 0

    def submit(self, request: WaitingRequest, n_output: int = 1) -> int:
        """It will say `n_output` tokens, whatever its `max_tokens`. Returns how many are said to be ahead."""
        assert request.id not in self.requests
        self.requests[request.id], self.n_output[request.id] = request.request, n_output
        self.waiting[request.id] = request
        return self.policy.add(request)

    def cancel(self, request_id: int) -> None:
        if request_id in self.waiting:
            self.policy.remove(self.waiting.pop(request_id))
        elif request_id in self.running:
            self.policy.stop(self.running.pop(request_id))

    def admit(self) -> None:
        while self.waiting and self.admit_one():
            assert len(self.running) <= self.n_slots
        assert len(self.policy) == len(self.waiting)

    def admit_one(self) -> bool:
        full = len(self.running) >= self.n_slots
        chosen = self.policy.next(nothing if full else self.cached)
        if chosen is None:
            return False
        assert self.waiting[chosen.id] is chosen
        if full:
            victim = self.policy.victim(chosen, self.running.values())
            if victim is None:
                return False
            self.make_room(victim)
        sequence = chosen.sequence if isinstance(chosen, PutAside) else start(chosen, 0, min(self.cached(chosen), len(chosen.tokens) - 1))
        self.policy.start(chosen)
        del self.waiting[chosen.id]
        self.running[chosen.id] = sequence
        self.started.append(chosen.id)
        return True

    def make_room(self, victim: Sequence) -> None:
        assert self.running.pop(victim.id) is victim
        victim.n_preemptions += 1
        self.put_aside.append(victim.id)
        self.policy.stop(victim)
        self.waiting[victim.id] = aside = PutAside(victim, None)
        self.policy.add(aside)

    def compute(self) -> None:
        """One step: prompts by urgency as far as the budget goes, one token for everybody else."""
        self.n_steps += 1
        ready = [sequence for sequence in self.running.values() if not sequence.paused and sequence.n_pending == 1]
        behind = [sequence for sequence in self.running.values() if not sequence.paused and sequence.n_pending > 1]
        budget = self.budget
        for sequence in sorted(behind, key=self.policy.urgency):
            n = min(sequence.n_pending, budget)
            budget -= n
            if n:
                self._computed(sequence, n)
        for sequence in ready:
            self._computed(sequence, 1)

    def _computed(self, sequence: Sequence, n: int) -> None:
        before = max(sequence.n_computed, sequence.n_highest)
        sequence.n_computed += n
        sequence.n_highest = max(before, sequence.n_computed)
        sequence.last_step = self.n_steps
        n_prompt = min(sequence.n_highest, sequence.n_prompt) - min(before, sequence.n_prompt)
        if n_prompt:
            self.policy.charge(sequence, n_prompt=n_prompt)
        self.served[sequence.id] += n_prompt
        if sequence.n_pending == 0:
            if sequence.wants_token:
                sequence.tokens.append(0)
                self.policy.charge(sequence, n_output=1)
                self.served[sequence.id] += 2
            if not sequence.wants_token or sequence.n_predicted >= self.n_output[sequence.id]:
                self.policy.stop(self.running.pop(sequence.id))
                self.ended.append(sequence.id)

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self.admit()
            self.compute()

    def drain(self, most: int = 100_000) -> None:
        for _ in range(most):
            if not self.waiting and not self.running:
                return
            self.step()
        raise AssertionError(f"{len(self.waiting)} wait and {len(self.running)} run after {most} steps")

    def service(self, belongs: Callable[[GenerationRequest], bool]) -> float:
        return sum(self.served[request_id] for request_id, request in self.requests.items() if belongs(request))
