"""The engine's counters and gauges, as Prometheus reads them. Numbers only; knows no request."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.http.ports import Runner

_GAUGES = {
    "n_running": ("requests_running", "Sequences in a slot"),
    "n_waiting": ("requests_waiting", "Sequences waiting for a slot"),
    "n_waiting_tokens": ("waiting_tokens", "Prompt tokens of the sequences that wait"),
    "n_swapped": ("requests_swapped", "Sequences that were put aside for others and wait to go on"),
    "kv_used_tokens": ("kv_used_tokens", "KV cells in use"),
    "kv_total_tokens": ("kv_total_tokens", "KV cells in all"),
    "n_saved_states": ("saved_states", "KV states kept in host memory"),
    "cache_ram_bytes": ("cache_ram_bytes", "Host memory that saved states take"),
    "cache_ram_limit": ("cache_ram_limit_bytes", "Host memory that saved states may take"),
    "n_threads": ("threads", "Threads of the forward pass"),
    "retry_after_s": ("retry_after_seconds", "When a slot may be free for somebody who comes now"),
}
_COUNTERS = {
    "n_prompt_tokens": ("prompt_tokens", "Prompt tokens computed"),
    "n_cached_tokens": ("cached_tokens", "Prompt tokens taken from the cache"),
    "n_shared_tokens": ("shared_tokens", "Of the cached tokens: copied from another sequence or a saved state"),
    "n_recomputed_tokens": ("recomputed_tokens", "Tokens computed again after a preemption or a fault"),
    "n_predicted_tokens": ("generated_tokens", "Tokens generated"),
    "n_draft_tokens": ("draft_tokens", "Tokens guessed ahead"),
    "n_draft_accepted": ("draft_tokens_accepted", "Tokens guessed ahead that were right"),
    "n_preemptions": ("preemptions", "Times that a sequence was put aside for another"),
    "n_moves": ("slot_moves", "Running sequences moved to another slot"),
    "n_steps": ("steps", "Engine steps"),
    "decode_seconds": ("decode_seconds", "Wall time inside the forward pass"),
    "sample_seconds": ("sample_seconds", "Wall time of choosing tokens"),
    "step_seconds": ("step_seconds", "Wall time of whole engine steps"),
}


class EngineCollector(Collector):
    """Reads the runner's own counters when somebody scrapes; they start again with a new process, as Prometheus expects."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def collect(self) -> Iterator[Metric]:
        stats = self._runner.stats
        for name, (metric, help) in _GAUGES.items():
            yield GaugeMetricFamily(f"capsule_{metric}", help, getattr(stats, name))
        for name, (metric, help) in _COUNTERS.items():
            yield CounterMetricFamily(f"capsule_{metric}", help, getattr(stats, name))
        yield GaugeMetricFamily("capsule_runner_up", "1 while the model can serve", float(self._runner.state.name == "READY"))
        yield GaugeMetricFamily(
            "capsule_last_step_age_seconds", "Since the last step, while somebody waits for one", self._runner.step_age_s
        )
        yield CounterMetricFamily("capsule_runner_restarts", "Times the model's process was started again", self._runner.restarts)
