"""Drawing tokens for several sequences side by side in threads. Knows samplers and rows; nothing about requests, text or the cache.

A chain draws in native code, where Python's lock is not held, and what it changes is its sequence's alone. Of the context it only reads,
provided that the calling thread has fetched the logits once: fetching waits for the computation and puts the rows in order, and what
is left to do of that for the next ones is to write zeros over zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from server.engine.ports import Draw, Drawn
from server.llama.backends import Device
from server.llama.hardware import usable_cpus

WORTH_A_THREAD = 1 << 16
"""Vocabulary entries that a thread must have to look at before it is woken: about 0.2 ms, several times what waking costs."""


def side_by_side(devices: Sequence[Device]) -> bool:
    """Whether samplers may read logits in several threads at once: waiting for a CPU or CUDA that has finished is no work, while other
    backends tidy up whenever they are waited for."""
    return all(device.name.upper().startswith("CUDA") for device in devices if device.is_gpu)


class DrawPool:
    """Threads that live as long as the context and start when they are first needed; `n_vocab`: what one row weighs."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._n_cpus = usable_cpus()
        self._threads = ThreadPoolExecutor(max(1, self._n_cpus - 1), "draw")

    def close(self) -> None:
        self._threads.shutdown()

    def draw(self, draws: Sequence[Draw], n_threads: int) -> list[Drawn | Exception]:
        """Result i belongs to draw i; a draw that fails is its exception, and the others do not notice.

        At most `n_threads` work at once, this one among them; everyone takes the next draw that nobody has taken.
        """
        results: list[Drawn | Exception] = [[] for _ in draws]
        queue = iter(enumerate(draws))  # handed out by one C call at a time, so no draw is taken twice
        helpers = [self._threads.submit(_work, queue, results) for _ in range(self._workers(draws, n_threads) - 1)]
        _work(queue, results)
        for helper in helpers:
            helper.result()
        return results

    def _workers(self, draws: Sequence[Draw], n_threads: int) -> int:
        n_rows = sum(len(draw.rows) for draw in draws)
        return max(1, min(self._n_cpus, n_threads, len(draws), n_rows * self._n_vocab // WORTH_A_THREAD))


def _work(queue: Iterator[tuple[int, Draw]], results: list[Drawn | Exception]) -> None:
    for index, draw in queue:
        try:
            results[index] = draw_one(draw)
        except Exception as error:
            results[index] = error


def draw_one(draw: Draw) -> Drawn:
    """Tokens from the model's own distribution whatever was guessed: the draft only decides whether the next row is of use.

    Raises:
        Exception: whatever the sampler raises.
    """
    drawn: Drawn = []
    for index, row in enumerate(draw.rows):
        drawn.append(draw.sampler.sample(row, draw.n_logprobs))
        if index == len(draw.drafts) or drawn[-1][0] != draw.drafts[index] or draw.sampler.has_ended:
            break
    return drawn
