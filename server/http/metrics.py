"""Numbers about requests and the engine in Prometheus' text format, in a registry of their own. Never text, never a key."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from server.http.figures import EngineCollector
from server.http.ledger import Place
from server.http.ports import Progress, Runner
from server.protocol import Delta, Finished, GenerationRequest, Priority, Started

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    def __init__(self, runner: Runner, version: str, model: str) -> None:
        self._registry = registry = CollectorRegistry(auto_describe=False)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(name, help, labels, registry=registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, help, labels, buckets=buckets, registry=registry)

        self._requests = counter("capsule_requests", "HTTP requests by route, method and status", "route", "method", "status")
        self._refusals = counter("capsule_refusals", "Requests turned away for a passing state or a limit", "reason")
        self._generations = counter("capsule_generations", "Generated sequences by how they ended", "finish_reason", "priority")
        self._first = histogram("capsule_time_to_first_token_seconds", "From submit to the first token", _SECONDS)
        self._between = histogram("capsule_inter_token_seconds", "Between tokens of one sequence, as its reader took them", _TOKEN_SECONDS)
        self._queue = histogram("capsule_queue_seconds", "From submit to a slot", _SECONDS, "priority")
        build = Gauge("capsule_build_info", "Always 1; the labels say what runs", ("version", "model"), registry=registry)
        build.labels(version, model).set(1)
        registry.register(EngineCollector(runner))

    def request(self, route: str, method: str, status: int) -> None:
        self._requests.labels(route, method, str(status)).inc()

    def refusal(self, reason: str) -> None:
        """`reason`: one of the few words that `Unavailable.reason` has."""
        self._refusals.labels(reason).inc()

    def sequence(self, request: GenerationRequest, place: Place | None = None) -> SequenceClock:
        """To be made when a sequence is submitted; `place` is what was booked for it and hears of its events."""
        return SequenceClock(self, request.priority, place)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class SequenceClock:
    """Times one sequence from its events. `end` counts it exactly once."""

    def __init__(self, metrics: Metrics, priority: Priority, place: Place | None) -> None:
        self._generations = metrics._generations
        self._first = metrics._first
        self._between = metrics._between
        self._queue = metrics._queue.labels(priority)
        self._priority = priority
        self._place = place
        self._submitted = time.monotonic()
        self._last: float | None = None
        self._over = False

    def event(self, event: Progress) -> None:
        now = time.monotonic()
        if self._place is not None:
            self._place.event(event)
        match event:
            case Started():
                self._queue.observe(now - self._submitted)
            case Delta() if self._last is None:
                self._first.observe(now - self._submitted)
                self._last = now
            case Delta():
                assert self._last is not None
                self._between.observe((now - self._last) / max(1, len(event.tokens)))
                self._last = now
            case Finished():
                self.end(event.reason)

    def end(self, reason: str) -> None:
        """`reason`: stop, length, cancelled (the client left) or error."""
        if self._place is not None:
            self._place.leave()
        if not self._over:
            self._over = True
            self._generations.labels(reason, self._priority).inc()
