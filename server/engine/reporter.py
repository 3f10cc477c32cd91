"""What the engine tells the world: events in order, counters, slots, the queue. What others read is replaced,
never changed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import msgspec

from server.engine.live import slot_state
from server.engine.rates import Rates
from server.engine.request import Entry, PutAside
from server.engine.scheduler import Scheduler
from server.protocol import EngineStats, Event, Failed, Finished, GetQueue, Queue, Queued, QueuedRequest, SlotState, Step, Terminal

SNAPSHOT_SECONDS = 0.05
"""`slots` is at most this much older than the last step."""
POSITIONS_SECONDS = 1.0
"""Waiting clients hear of a new position this often; 1 ms more for each that waits, so that the walk never shows."""
QUEUE_LISTED = 1000
QUEUE_SECONDS = 0.1
"""Who asks for the queue again within this time gets the same answer: listing 1,000 takes 11 ms of the step loop."""


class Tally:
    """Counters of the step loop, since the start."""

    __slots__ = ("n_steps", "n_prompt", "n_cached", "n_predicted", "n_drafts", "n_accepted", "decode_s", "step_s", "sample_s", "n_ended")

    def __init__(self) -> None:
        self.n_steps = self.n_prompt = self.n_cached = self.n_predicted = self.n_drafts = self.n_accepted = 0
        self.decode_s = self.step_s = self.sample_s = 0.0
        self.n_ended = 0
        """Requests taken from the inbox that are over."""


class Reporter:
    def __init__(self, scheduler: Scheduler, policy_name: str, emit: Callable[[Step | Queue], None], now: float) -> None:
        self.tally = Tally()
        self.rates = Rates()
        self.stats = EngineStats()
        self.slots: tuple[SlotState, ...] = ()
        self.queue_moved = False
        self.slots_moved = True
        self.n_threads = 0
        self._scheduler = scheduler
        self._policy_name = policy_name
        self._queue: tuple[float, Queue] | None = None
        self._emit = emit
        self._events: list[Event] = []
        self._told = self._published = now
        self.publish(now)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def event(self, *events: Event) -> None:
        self._events += events

    def end(self, event: Terminal) -> None:
        """The one terminal event of a request."""
        self._events.append(event)
        self.tally.n_ended += 1

    def ended_ids(self) -> set[int]:
        """Requests whose terminal event has not been sent yet."""
        return {event.id for event in self._events if isinstance(event, Finished | Failed)}

    def send(self, now: float) -> None:
        self.publish(now)
        self.flush()

    def flush(self) -> None:
        """Send what there is, with the counters as last published."""
        events, self._events = tuple(self._events), []
        self._emit(Step(events, self.stats))

    def eta(self, position: int) -> float | None:
        scheduler = self._scheduler
        n_slots = scheduler.limits.n_slots
        return self.rates.eta(position, n_slots - len(scheduler.running), n_slots)

    @property
    def retry_after_s(self) -> float:
        """When somebody who is turned away now may find a slot."""
        return self.rates.retry_after(self._scheduler.n_waiting, self._scheduler.limits.n_slots)

    # ---- the queue ---------------------------------------------------------------------------------------------

    def tell_positions(self, now: float) -> None:
        """Now and then: whoever has moved up hears of it."""
        if not self.queue_moved or now - self._told < POSITIONS_SECONDS + self._scheduler.n_waiting * 1e-3:
            return
        self.queue_moved, self._told = False, now
        for entry, has_moved in self._scheduler.walk():
            if has_moved and not isinstance(entry, PutAside):
                eta = self.eta(entry.position)
                self._events.append(Queued(id=entry.id, position=entry.position, n_prompt_tokens=len(entry.tokens), eta_s=eta))

    def answer(self, asked: GetQueue, now: float) -> None:
        """The queue as it is now."""
        if self._queue is None or now - self._queue[0] > QUEUE_SECONDS:
            self._queue = now, self._listed_queue(now)
        found = self._queue[1]
        self._emit(msgspec.structs.replace(found, id=asked.id, waiting=found.waiting[: max(0, asked.most)]))

    def _listed_queue(self, now: float) -> Queue:
        scheduler, rates = self._scheduler, self.rates
        first = enumerate(islice(scheduler.policy, QUEUE_LISTED))
        return Queue(
            id=0,
            policy=self._policy_name,
            waiting=tuple(self._listed(entry, position, now) for position, entry in first),
            keys=tuple(scheduler.policy.shares()),
            n_running=len(scheduler.running),
            n_waiting=scheduler.n_waiting,
            n_waiting_tokens=scheduler.n_waiting_tokens,
            prompt_rate=rates.prompt_rate(now),
            generation_rate=rates.generation_rate(now),
            finish_rate=rates.finish_rate(now),
        )

    def _listed(self, entry: Entry, position: int, now: float) -> QueuedRequest:
        return QueuedRequest(
            id=entry.id,
            position=position,
            priority=entry.request.priority,
            key=entry.request.flow.key,
            n_prompt_tokens=len(entry.tokens),
            waited_s=round(now - entry.submitted_at, 3),
            eta_s=self.eta(position),
            is_preempted=isinstance(entry, PutAside),
        )

    # ---- numbers -----------------------------------------------------------------------------------------------

    def publish(self, now: float) -> None:
        scheduler, tally, counters = self._scheduler, self.tally, self._scheduler.counters
        figures = scheduler.kv.figures()
        self.stats = EngineStats(
            n_running=len(scheduler.running),
            n_waiting=scheduler.n_waiting,
            kv_used_tokens=figures.n_used,
            kv_total_tokens=figures.n_cells,
            n_steps=tally.n_steps,
            n_prompt_tokens=tally.n_prompt,
            n_cached_tokens=tally.n_cached,
            n_predicted_tokens=tally.n_predicted,
            decode_seconds=tally.decode_s,
            step_seconds=tally.step_s,
            sample_seconds=tally.sample_s,
            n_waiting_tokens=scheduler.n_waiting_tokens,
            n_swapped=scheduler.n_put_aside,
            n_preemptions=counters.n_preemptions,
            n_moves=counters.n_moves,
            n_shared_tokens=counters.n_shared,
            n_recomputed_tokens=counters.n_recomputed,
            n_saved_states=figures.n_saved,
            cache_ram_bytes=figures.ram_bytes,
            cache_ram_limit=figures.ram_limit,
            n_draft_tokens=tally.n_drafts,
            n_draft_accepted=tally.n_accepted,
            n_threads=self.n_threads,
            retry_after_s=self.retry_after_s,
        )
        if self.slots_moved or now - self._published >= SNAPSHOT_SECONDS:
            self.slots_moved, self._published = False, now
            self.slots = self._slot_states()

    def _slot_states(self) -> tuple[SlotState, ...]:
        """Slots in which somebody can run; cells of idle prefixes are those the native cache still holds there."""
        scheduler = self._scheduler
        by_slot = {sequence.slot: sequence for sequence in scheduler.running.values()}
        ids = sorted({*range(scheduler.limits.n_slots), *by_slot})
        held = scheduler.kv.held
        return tuple(slot_state(i, by_slot.get(i), held(i), scheduler.limits.n_ctx_slot) for i in ids)
