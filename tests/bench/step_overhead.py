"""How much of a step is ours: time outside llama_decode with 16 sequences, split into sampling (native) and Python.

    python -m tests.bench.step_overhead [model.gguf] [--sequences 16] [--prompt 256] [--new 64] [--threads N]

With `--threads 1` CPU time of the one thread is measured instead of wall time, so that a busy machine does not blur it.
With `--chunks` also what `--itl-target` does to prompts and streams. A script, not a test.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from server.engine.policy import policy_named
from server.engine.process import make_engine
from server.engine.request import WaitingRequest
from server.llama.runtime import Runtime, open_runtime
from server.protocol import Delta, GenerationRequest, Queue, RunnerSettings, SamplingParams, Step, frame


class Bench:
    """An engine without pipes; frames are encoded as in a runner, then dropped. One per measurement, on one runtime."""

    def __init__(self, runtime: Runtime, settings: RunnerSettings, clock: Callable[[], float] = time.perf_counter) -> None:
        self.engine = make_engine(settings, runtime, policy_named(settings.policy), self._emit, clock)
        self.clock = clock
        self.gaps: list[float] = []
        self._said: dict[int, float] = {}

    def _emit(self, step: Step | Queue) -> None:
        frame(step)
        if not isinstance(step, Step):
            return
        now = self.clock()
        for event in step.events:
            if isinstance(event, Delta):
                if event.id in self._said:
                    self.gaps.append(now - self._said[event.id])
                self._said[event.id] = now

    def submit(self, number: int, n_prompt: int, n_new: int, sampling: SamplingParams) -> None:
        # Different beginnings, so that no prefix is shared.
        tokens = [2000 + number, *(1000 + (7 * number + 13 * i) % 5000 for i in range(n_prompt - 1))]
        request = GenerationRequest(prompt="", max_tokens=n_new, sampling=sampling, cache_prompt=False)
        self.engine.inbox.put(WaitingRequest(number, request, tokens, self.clock(), number))

    def run(self, n_requests: int) -> None:
        while self.engine.n_ended < n_requests:
            self.engine.step()


def clock_of(options: argparse.Namespace) -> Callable[[], float]:
    return time.thread_time if options.threads == 1 else time.perf_counter


def overhead(runtime: Runtime, settings: RunnerSettings, name: str, sampling: SamplingParams, options: argparse.Namespace) -> None:
    bench = Bench(runtime, settings, clock_of(options))
    for number in range(options.sequences):
        bench.submit(number, options.prompt, options.new, sampling)
    bench.run(options.sequences)
    stats = bench.engine.stats
    sampled = stats.sample_seconds
    python = stats.step_seconds - stats.decode_seconds - sampled
    tokens, wall = stats.n_predicted_tokens, stats.step_seconds
    print(
        f"{name:<22}{tokens:>7} tokens {tokens / wall:>7.1f}/s  step {1e3 * stats.step_seconds / stats.n_steps:>7.1f} ms  "
        f"decode {100 * stats.decode_seconds / wall:>5.1f} %  sampling {100 * sampled / wall:>5.2f} %  "
        f"Python {100 * python / wall:>5.2f} %  ({1e6 * python / stats.n_steps:.0f} us a step)"
    )


def chunks(runtime: Runtime, settings: RunnerSettings, options: argparse.Namespace, greedy: SamplingParams) -> None:
    print("\nfour streams, then four prompts beside them: --itl-target against pace")
    for target in (0.075, 0.15, 0.3, 0.6, 1.2, 60.0):
        bench = Bench(runtime, msgspec.structs.replace(settings, itl_target=target), clock_of(options))
        for number in range(4):
            bench.submit(number, 16, 10_000, greedy)
        for _ in range(20):
            bench.engine.step()
        bench.gaps.clear()
        begun = bench.clock()
        for number in range(4, 8):
            bench.submit(number, options.prompt, 1, greedy)
        bench.run(4)
        wall = bench.clock() - begun
        gaps = sorted(bench.gaps)
        print(
            f"  {1e3 * target:>6.0f} ms: {4 * options.prompt / wall:>6.1f} prompt tokens/s, streams {len(gaps) / wall:>5.1f} tokens/s, "
            f"gap median {1e3 * statistics.median(gaps):>6.0f} ms, p95 {1e3 * gaps[int(0.95 * len(gaps))]:>6.0f} ms, "
            f"largest {1e3 * gaps[-1]:>6.0f} ms"
        )
        for slot in range(runtime.decoder.n_slots):
            runtime.decoder.truncate(slot, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--chunks", action="store_true", help="also measure prefill beside streams")
    options = parser.parse_args()
    if options.model is None:
        from models.cache import default_cache_dir
        from models.fetch import default_entry, fetch

        options.model = fetch(default_entry().name, default_cache_dir())
    n_slots = max(8, options.sequences)
    settings = RunnerSettings(
        path=str(options.model), parallel=n_slots, ctx_size=n_slots * 1024, threads=options.threads, spec="off", itl_target=0.6
    )
    runtime = open_runtime(settings, lambda stage, progress: None)
    print(f"{runtime.info.name}: {runtime.info.cpu_variant}, {runtime.info.n_threads} threads, {options.sequences} sequences")
    greedy = SamplingParams(temperature=0.0, ignore_eos=True)
    overhead(runtime, settings, "greedy", greedy, options)
    overhead(runtime, settings, "default sampling", SamplingParams(seed=1, ignore_eos=True), options)
    if options.chunks:
        chunks(runtime, settings, options, greedy)
    runtime.close()


if __name__ == "__main__":
    main()
