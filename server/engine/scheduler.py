"""Who waits, who runs in which slot, and what the next step computes. Pure: no clock, no thread, no ctypes, no text.

The caller does what is decided here (decode, sample) and reports back: `advance` after a decode, `suspect` and `rewind` after a
fault, `release` at the end. No call costs more than the number of slots, except one search in the queue and prompt comparisons at
admission.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from server.engine.placement import Slot, choose_slot
from server.engine.plan import Limits, StepPlan, plan_step
from server.engine.policy import Policy
from server.engine.request import Sequence, WaitingRequest, start


class Scheduler:
    """Every request it accepts is in exactly one place: the queue, or a slot, until `release` or a cancel takes it out."""

    def __init__(self, limits: Limits, policy: Policy, max_queue: int) -> None:
        self.limits = limits
        self.slots = [Slot(index) for index in range(limits.n_slots)]
        self.running: dict[int, Sequence] = {}
        """By request id, in order of admission."""
        self._policy = policy
        self.max_queue = max_queue
        self._waiting: dict[int, WaitingRequest] = {}
        self._suspects: deque[Sequence] = deque()
        self._n_admissions = 0
        self._n_steps = 0

    # ---- requests ----------------------------------------------------------------------------------------------

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def request_ids(self) -> list[int]:
        """All requests here, running ones first."""
        return [*self.running, *self._waiting]

    @property
    def n_requests(self) -> int:
        return len(self._waiting) + len(self.running)

    @property
    def capacity(self) -> int:
        """Requests it holds at most: all slots busy and the queue full."""
        return len(self.slots) + self.max_queue

    @property
    def is_idle(self) -> bool:
        """Nothing to compute (everybody who runs is paused, nobody can start)."""
        return all(sequence.paused for sequence in self.running.values()) and not self._can_admit()

    def holds(self, request_id: int) -> bool:
        return request_id in self._waiting or request_id in self.running

    def submit(self, request: WaitingRequest) -> int | None:
        """Queue a request. Returns how many are ahead of it, or None: the queue is full.

        Raises:
            ValueError: the id is in use, or the prompt is empty or can never fit (the intake refuses those).
        """
        if self.holds(request.id):
            raise ValueError(f"request id {request.id} is in use")
        if not 0 < len(request.tokens) < self.limits.n_ctx_slot:
            raise ValueError(f"a prompt of {len(request.tokens)} tokens cannot run in a slot of {self.limits.n_ctx_slot}")
        if self.n_requests >= self.capacity:
            return None
        self._waiting[request.id] = request
        request.position = self._policy.add(request)
        return request.position

    def withdraw(self, request_id: int) -> WaitingRequest | None:
        """Take a request out of the queue; None = it is not waiting."""
        request = self._waiting.pop(request_id, None)
        if request is not None:
            self._policy.remove(request)
        return request

    def set_paused(self, request_id: int, paused: bool) -> None:
        """Pause or resume a request; unknown ids are ignored (it may just have ended)."""
        request = self.running.get(request_id) or self._waiting.get(request_id)
        if request is not None:
            request.paused = paused

    def moved(self) -> Iterator[WaitingRequest]:
        """Walk the whole queue and yield those whose position has changed. Costs the queue's length: not for every step."""
        for position, request in enumerate(self._policy):
            if request.position != position:
                request.position = position
                yield request

    # ---- slots -------------------------------------------------------------------------------------------------

    def admit(self) -> Sequence | None:
        """Start the next waiting request if a slot is free. The caller cuts the slot's cells to `n_cached` and calls again."""
        if not self._can_admit():
            return None
        waiting = self._policy.pop()
        del self._waiting[waiting.id]
        slot, n_kept = choose_slot(self.slots, waiting.tokens, reuse=waiting.request.cache_prompt, admissions=self._n_admissions)
        self._n_admissions += 1
        sequence = start(waiting, slot.id, n_kept)
        slot.sequence, slot.tokens = sequence, []
        self.running[sequence.id] = sequence
        return sequence

    def release(self, sequence: Sequence) -> int:
        """The sequence is over: its slot is free. Returns how many cells stay as a reusable prefix (0 = clear them)."""
        slot = self.slots[sequence.slot]
        del self.running[sequence.id]
        slot.sequence = None
        slot.last_used = self._n_admissions
        slot.tokens = sequence.tokens[: sequence.n_computed] if sequence.request.cache_prompt else []
        return len(slot.tokens)

    def forget(self, slot_id: int) -> None:
        """The cells of a free slot are empty."""
        self.slots[slot_id].tokens = []

    def _can_admit(self) -> bool:
        return bool(self._waiting) and len(self.running) < len(self.slots)

    # ---- steps -------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """What to compute next, or None. Suspects of a fault are tried first, one at a time."""
        while self._suspects:
            suspect = self._suspects[0]
            if self.running.get(suspect.id) is suspect and not suspect.paused:
                return plan_step([suspect], self.limits)
            self._suspects.popleft()
        runnable = [sequence for sequence in self.running.values() if not sequence.paused]
        return plan_step(runnable, self.limits) if runnable else None

    def advance(self, plan: StepPlan) -> None:
        """The plan has been computed."""
        self._n_steps += 1
        for share in plan.shares:
            share.sequence.n_computed += share.n_tokens
            share.sequence.last_step = self._n_steps
        if self._suspects:
            self._suspects.popleft()

    def suspect(self, plan: StepPlan) -> Sequence | None:
        """The plan failed. Returns the sequence to blame if it failed alone, else has each of them tried alone."""
        if self._suspects:
            return self._suspects.popleft()
        self._suspects.extend(share.sequence for share in plan.shares)
        return None

    def rewind(self, sequence: Sequence, n_computed: int) -> None:
        """The sequence's cells hold only its first `n_computed` tokens."""
        if not 0 <= n_computed < len(sequence.tokens):
            raise ValueError(f"{n_computed} cells for {len(sequence.tokens)} tokens")
        sequence.n_computed = n_computed
        sequence.n_cached = min(sequence.n_cached, n_computed)
