"""Numbers about requests and the engine in Prometheus' text format, in a registry of their own. Never text, never a key."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.http.ports import Progress, Runner
from server.protocol import Delta, Finished, Started

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    def __init__(self, runner: Runner, version: str, model: str) -> None:
        self._registry = registry = CollectorRegistry(auto_describe=False)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(name, help, labels, registry=registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, help, buckets=buckets, registry=registry)

        self._requests = counter("capsule_requests", "HTTP requests by route, method and status", "route", "method", "status")
        self._generations = counter("capsule_generations", "Generated sequences by how they ended", "finish_reason")
        self._first = histogram("capsule_time_to_first_token_seconds", "From submit to the first token", _SECONDS)
        self._between = histogram("capsule_inter_token_seconds", "Between tokens of one sequence, as its reader took them", _TOKEN_SECONDS)
        self._queue = histogram("capsule_queue_seconds", "From submit to a slot", _SECONDS)
        build = Gauge("capsule_build_info", "Always 1; the labels say what runs", ("version", "model"), registry=registry)
        build.labels(version, model).set(1)
        registry.register(_EngineCollector(runner))

    def request(self, route: str, method: str, status: int) -> None:
        self._requests.labels(route, method, str(status)).inc()

    def sequence(self) -> SequenceClock:
        """To be made when a sequence is submitted."""
        return SequenceClock(self._generations, self._first, self._between, self._queue)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class SequenceClock:
    """Times one sequence from its events. `end` counts it exactly once."""

    def __init__(self, generations: Counter, first: Histogram, between: Histogram, queue: Histogram) -> None:
        self._generations = generations
        self._first = first
        self._between = between
        self._queue = queue
        self._submitted = time.monotonic()
        self._last: float | None = None
        self._over = False

    def event(self, event: Progress) -> None:
        now = time.monotonic()
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
        if not self._over:
            self._over = True
            self._generations.labels(reason).inc()


class _EngineCollector(Collector):
    """Reads the runner's own counters when somebody scrapes; they start again with a new process, as Prometheus expects."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def collect(self) -> Iterator[Metric]:
        s = self._runner.stats
        yield GaugeMetricFamily("capsule_requests_running", "Sequences in a slot", s.n_running)
        yield GaugeMetricFamily("capsule_requests_waiting", "Sequences waiting for a slot", s.n_waiting)
        yield GaugeMetricFamily("capsule_kv_used_tokens", "KV cells in use", s.kv_used_tokens)
        yield GaugeMetricFamily("capsule_kv_total_tokens", "KV cells in all", s.kv_total_tokens)
        yield GaugeMetricFamily("capsule_runner_up", "1 while the model can serve", float(self._runner.state.name == "READY"))
        yield CounterMetricFamily("capsule_runner_restarts", "Times the model's process was started again", self._runner.restarts)
        yield CounterMetricFamily("capsule_prompt_tokens", "Prompt tokens computed", s.n_prompt_tokens)
        yield CounterMetricFamily("capsule_cached_tokens", "Prompt tokens taken from the cache", s.n_cached_tokens)
        yield CounterMetricFamily("capsule_generated_tokens", "Tokens generated", s.n_predicted_tokens)
        yield CounterMetricFamily("capsule_steps", "Engine steps", s.n_steps)
        yield CounterMetricFamily("capsule_decode_seconds", "Wall time inside the forward pass", s.decode_seconds)
        yield CounterMetricFamily("capsule_step_seconds", "Wall time of whole engine steps", s.step_seconds)
