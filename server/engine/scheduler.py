"""Who waits, who runs in which slot, who makes room for whom, and what the next step computes. Pure: no clock, no thread, no text.

The caller does what is decided here (decode, sample) and reports back: `advance` after a decode, `suspect` and `rewind` after a
fault, `release` at the end. Cells are the KV store's business, order is the policy's; here is what must hold between them: every
request is in exactly one place, and nobody fails for another's sake.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from server.engine.following import follow, resolve
from server.engine.kv import KvStore
from server.engine.pace import StepCost
from server.engine.plan import Limits, StepPlan, plan_step
from server.engine.policy import Policy
from server.engine.request import Entry, PutAside, Sequence, WaitingRequest, start
from server.engine.reserve import Reserve

PREFILL_LEAST = 16
"""Prompt tokens that stand beside streams however slow the step: no stream starves a prefill."""
BURST_STRETCH = 2.0
"""Where more prompts are waiting for their first token than streams are being read, steps may take so many times the target."""
ALONE_LEAST, ALONE_SECONDS = 128, 0.5
"""With nobody decoding a step takes prompt tokens for this long: smaller chunks cost speed, larger ones only make arrivals wait."""
MOVE_TOKENS = 16
"""A sequence is moved to close a gap between slots if it may still generate so many tokens."""
RECHECK_STEPS = 8
"""With all slots taken, who is due one is asked this often: it depends on what the others have been served since."""


@dataclass(slots=True)
class Counters:
    """Since the start."""

    n_preemptions: int = 0
    n_moves: int = 0
    n_shared: int = 0
    n_recomputed: int = 0


class Scheduler:
    """Every request it accepts is in exactly one place: the queue, or a slot, until `release`, `withdraw` or `expired` takes it out."""

    def __init__(
        self,
        limits: Limits,
        policy: Policy,
        kv: KvStore,
        *,
        max_queue: int,
        max_queue_tokens: int = 0,
        itl_target: float = 0.15,
        reserve: Reserve | None = None,
    ) -> None:
        """`itl_target`: seconds; `max_queue_tokens`: prompt tokens that may wait, 0 = any number."""
        self.limits = limits
        self.policy = policy
        self.kv = kv
        self.cost = StepCost()
        self.max_queue, self.max_queue_tokens = max_queue, max_queue_tokens
        self.running: dict[int, Sequence] = {}
        """By request id, in order of admission."""
        self.counters = Counters()
        self.n_waiting_tokens = 0
        self.n_put_aside = 0
        """Part of `n_waiting`."""
        self._itl_target = itl_target
        self._reserve = reserve or Reserve()
        self._waiting: dict[int, Entry] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._suspects: deque[Sequence] = deque()
        self._settled: list[Sequence] = []
        self._n_steps = 0
        self._ask_again_at = 0
        self._gaps = False

    # ---- requests ----------------------------------------------------------------------------------------------

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def request_ids(self) -> list[int]:
        """All requests here, running ones first."""
        return [*self.running, *self._waiting]

    @property
    def capacity(self) -> int:
        """Requests it holds at most: all slots busy and the queue full."""
        return self.limits.n_slots + self.max_queue

    @property
    def computes_prompts(self) -> bool:
        """Whether somebody who runs still waits for the first token."""
        return any(sequence.n_pending > 1 and sequence.is_runnable for sequence in self.running.values())

    def holds(self, request_id: int) -> bool:
        return request_id in self._waiting or request_id in self.running

    def submit(self, request: WaitingRequest) -> int | None:
        """Queue a request. Returns how many are (about) ahead of it, or None: the queue is full.

        Raises:
            ValueError: the id is in use, or the prompt is empty or can never fit (the intake refuses those).
        """
        if self.holds(request.id):
            raise ValueError(f"request id {request.id} is in use")
        if not 0 < len(request.tokens) < self.limits.n_ctx_slot:
            raise ValueError(f"a prompt of {len(request.tokens)} tokens cannot run in a slot of {self.limits.n_ctx_slot}")
        n_here = len(self._waiting) + len(self.running)
        if n_here >= self.capacity:
            return None
        n_tokens = self.n_waiting_tokens + len(request.tokens)
        if n_here > self.limits.n_slots and 0 < self.max_queue_tokens < n_tokens:
            return None
        request.position = self._enqueue(request)
        if request.request.timeout_s is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.id))
        return request.position

    def withdraw(self, request_id: int) -> Entry | None:
        """Take a request out of the queue; None = it is not waiting."""
        entry = self._waiting.get(request_id)
        if entry is not None:
            self.policy.remove(entry)
            self._dequeued(entry)
            if isinstance(entry, PutAside):
                self.kv.forget(entry.state)
        return entry

    @property
    def next_deadline(self) -> float | None:
        """On the clock of `submitted_at`."""
        while self._deadlines and not self.holds(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now: float) -> list[int]:
        """Requests whose deadline has passed. The caller withdraws or releases them."""
        ids = []
        while (deadline := self.next_deadline) is not None and deadline <= now:
            ids.append(heapq.heappop(self._deadlines)[1])
        return ids

    def set_paused(self, request_id: int, paused: bool) -> None:
        """Pause or resume a request; unknown ids are ignored (it may just have ended)."""
        entry = self.running.get(request_id) or self._waiting.get(request_id)
        if isinstance(entry, PutAside):
            entry = entry.sequence
        if entry is not None:
            entry.paused = paused
            self._ask_again_at = 0

    def walk(self) -> Iterator[tuple[Entry, bool]]:
        """The whole queue in order, and whose position has changed since the last walk. Costs its length: not for every step."""
        for position, entry in enumerate(self.policy):
            has_moved, entry.position = entry.position != position, position
            yield entry, has_moved

    def _enqueue(self, entry: Entry) -> int:
        self._waiting[entry.id] = entry
        self.n_waiting_tokens += len(entry.tokens)
        self.n_put_aside += isinstance(entry, PutAside)
        self._ask_again_at = 0
        return self.policy.add(entry)

    def _dequeued(self, entry: Entry) -> None:
        del self._waiting[entry.id]
        self.n_waiting_tokens -= len(entry.tokens)
        self.n_put_aside -= isinstance(entry, PutAside)

    # ---- slots -------------------------------------------------------------------------------------------------

    def admit(self) -> Sequence | None:
        """Start the next request, or go on with one that was put aside; somebody else may have to make room. Call until None.

        A started sequence's slot holds exactly its first `n_cached` tokens.
        """
        if not self._waiting or (len(self.running) >= self.limits.n_slots and self._n_steps < self._ask_again_at):
            return None
        self._ask_again_at = self._n_steps + RECHECK_STEPS
        full = len(self.running) >= self.limits.n_slots
        entry = self.policy.next(_nothing if full else self._cached)
        if entry is None:
            return None
        if full:
            victim = self.policy.victim(entry, self.running.values())
            if victim is None or not self._reserve.would_fit(entry, victim, self.running.values(), self.kv):
                return None
            self.put_aside(victim)
        sequence = self._resumed(entry) if isinstance(entry, PutAside) else self._started(entry)
        if sequence is None:
            return None
        self.policy.start(entry)
        self._dequeued(entry)
        self.running[sequence.id] = sequence
        self._gaps = True
        if sequence.follows is None:
            self._settled.append(sequence)
        return sequence

    def _started(self, entry: WaitingRequest) -> Sequence | None:
        others = self.running.values()
        if not self._reserve.may_try(entry, others, self.kv):
            return None
        request, spare = entry.request, self._reserve.spare(others, self.kv)
        attached = self.kv.attach(request.namespace, entry.tokens, reuse=request.cache_prompt)
        if attached is None:
            return None
        sequence = start(entry, attached.slot, attached.n_cached)
        if request.cache_prompt:
            sequence.follows = follow(sequence, others)
        if not self._reserve.fits(sequence, others, self.kv):
            self.kv.release(attached.slot, request.namespace, entry.tokens[: attached.n_cached], keep=True)
            self._reserve.refuse(entry, spare)
            return None
        self.counters.n_shared += attached.n_copied
        return sequence

    def _resumed(self, entry: PutAside) -> Sequence | None:
        sequence = entry.sequence
        if not self._reserve.can_resume(sequence, self.running.values(), self.kv):
            return None
        if entry.state is None:
            attached = self.kv.attach(entry.request.namespace, sequence.tokens, reuse=entry.request.cache_prompt)
            found = None if attached is None else (attached.slot, attached.n_cached)
        else:
            found = self.kv.swap_in(entry.state, sequence.n_computed)
        if found is None:
            return None
        sequence.slot, sequence.n_computed = found
        return sequence

    def put_aside(self, victim: Sequence) -> None:
        """Save what the victim has computed and give its slot up; it queues again, at the head of its own queue."""
        state = self.kv.swap_out(victim.slot)
        if state is None:
            victim.n_computed = 0
        victim.slot, victim.follows, victim.drafts = -1, None, []
        victim.n_preemptions += 1
        self.counters.n_preemptions += 1
        del self.running[victim.id]
        self.policy.stop(victim)
        self._enqueue(PutAside(victim, state))

    def release(self, sequence: Sequence) -> None:
        """The sequence is over: its slot is free, its cells stay as a reusable prefix if the request allows it."""
        del self.running[sequence.id]
        self.policy.stop(sequence)
        n_held = min(sequence.n_computed, len(sequence.tokens))
        if n_held < sequence.n_computed:
            n_held = self.kv.cut(sequence.slot, n_held)
        request = sequence.request
        self.kv.release(sequence.slot, request.namespace, sequence.tokens[:n_held], keep=request.cache_prompt)
        self._gaps = True
        self._ask_again_at = 0

    def close_gaps(self) -> None:
        """Bring running slots closer together: those that are not neighbours decode in separate graphs."""
        while self._gaps and (hole := self.kv.hole()) is not None:
            source, target = hole
            sequence = next((sequence for sequence in self.running.values() if sequence.slot == source), None)
            if sequence is None or sequence.n_remain(self.limits.n_ctx_slot) < MOVE_TOKENS or not self.kv.move(source, target):
                break
            sequence.slot = target
            self.counters.n_moves += 1
        self._gaps = False

    def settled(self) -> list[Sequence]:
        """Sequences whose start is certain since the last call: how many of their tokens were cached is known now."""
        settled, self._settled = self._settled, []
        return [sequence for sequence in settled if self.running.get(sequence.id) is sequence]

    def _cached(self, entry: Entry) -> int:
        if isinstance(entry, PutAside):
            return entry.sequence.n_computed
        return self.kv.longest(entry.request.namespace, entry.tokens) if entry.request.cache_prompt else 0

    # ---- steps -------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """What to compute next, or None. Suspects of a fault are tried first, one at a time."""
        self._resolve()
        while True:
            plan = self._planned()
            if plan is None or self.kv.n_ctx_pool is None or self.kv.make_room(len(plan.rows)) or not self.relieve():
                return plan

    def _planned(self) -> StepPlan | None:
        while self._suspects:
            suspect = self._suspects[0]
            if self.running.get(suspect.id) is suspect and suspect.is_runnable:
                return self._plan_of([suspect])
            self._suspects.popleft()
        runnable = [sequence for sequence in self.running.values() if sequence.is_runnable]
        return self._plan_of(runnable) if runnable else None

    def _plan_of(self, runnable: list[Sequence]) -> StepPlan:
        ready = [sequence for sequence in runnable if sequence.n_pending == 1]
        behind = [sequence for sequence in runnable if sequence.n_pending > 1]
        if len(behind) > 1:
            behind.sort(key=self.policy.urgency)
        n_streams = sum(sequence.is_decoding for sequence in ready)
        if not n_streams:
            return plan_step(ready, behind, self.limits, self._budget_alone)
        target = self._itl_target * min(BURST_STRETCH, max(1.0, len(behind) / n_streams))
        return plan_step(ready, behind, self.limits, lambda n_decode: self._budget(n_decode, target))

    def _budget(self, n_decode: int, target: float) -> int:
        most = max(PREFILL_LEAST, self.limits.n_ubatch - n_decode)
        return self.cost.prefill_budget(n_decode, target, least=PREFILL_LEAST, most=most)

    def _budget_alone(self, n_decode: int) -> int:
        most = max(1, self.limits.n_ubatch - n_decode)
        return self.cost.prefill_budget(0, max(ALONE_SECONDS, self._itl_target), least=min(ALONE_LEAST, most), most=most)

    def relieve(self) -> bool:
        """Put somebody aside because cells have run out; False = nobody but the last is left."""
        if len(self.running) <= 1:
            return False
        self.put_aside(self.policy.yields(self.running.values()))
        return True

    def advance(self, plan: StepPlan) -> None:
        """The plan has been computed."""
        self._n_steps += 1
        for share in plan.shares:
            self._advance(share.sequence, share.n_tokens, share.n_drafts)
        if self._suspects:
            self._suspects.popleft()
        self._resolve()

    def _advance(self, sequence: Sequence, n_tokens: int, n_drafts: int) -> None:
        before = sequence.n_computed
        sequence.n_computed += n_tokens
        sequence.last_step = self._n_steps
        self.kv.grew(sequence.slot, sequence.n_computed + n_drafts)
        first_new = min(sequence.n_computed, max(before, sequence.n_highest))
        self.counters.n_recomputed += first_new - before
        sequence.n_highest = max(sequence.n_highest, sequence.n_computed)
        n_prompt = min(sequence.n_computed, sequence.n_prompt) - min(first_new, sequence.n_prompt)
        if n_prompt:
            self.policy.charge(sequence, n_prompt=n_prompt)
        if before < sequence.n_prompt <= sequence.n_computed and sequence.request.cache_prompt:
            self.kv.publish(sequence.slot, sequence.request.namespace, sequence.tokens[: sequence.n_prompt])

    def said(self, sequence: Sequence, token: int) -> None:
        """A token was drawn for it."""
        sequence.tokens.append(token)
        self.policy.charge(sequence, n_output=1)

    def verified(self, sequence: Sequence, n_drafts: int, n_accepted: int) -> None:
        """Of the guesses that were computed with the last step, the first `n_accepted` were right: their cells stay."""
        sequence.drafts = []
        sequence.n_computed += n_accepted
        sequence.n_highest = max(sequence.n_highest, sequence.n_computed)
        if n_accepted < n_drafts:
            sequence.n_computed = self.kv.cut(sequence.slot, sequence.n_computed)

    def _resolve(self) -> None:
        for sequence, n_shared in resolve(self.running, self.kv):
            self.counters.n_shared += n_shared
            if sequence.follows is None:
                self._settled.append(sequence)

    # ---- faults ------------------------------------------------------------------------------------------------

    def suspect(self, plan: StepPlan) -> Sequence | None:
        """The plan failed. Returns the sequence to blame if it failed alone, else has each of them tried alone."""
        if self._suspects:
            return self._suspects.popleft()
        self._suspects.extend(share.sequence for share in plan.shares)
        return None

    def rewind(self, sequence: Sequence) -> None:
        """Believe the cells. The last token's logits are lost, so it is computed again even if its cell is there."""
        sequence.drafts = []
        n_kept = min(self.kv.held(sequence.slot), len(sequence.tokens) - 1)
        sequence.n_computed = self.kv.cut(sequence.slot, n_kept)
        sequence.n_cached = min(sequence.n_cached, sequence.n_computed)


def _nothing(entry: Entry) -> int:
    return 0
