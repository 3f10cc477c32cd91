"""Many independent streams at once: throughput, time to the first token, longest silence; against llama-server and llama_cpp.server.

Usage: python -m tests.bench.bench_streams [--rounds 3] [--streams 16] [--prompt 256] [--tokens 64] [--without-python-server]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from statistics import median

from tests.bench.clients import Burst, prompt_texts, run_burst, warm_up
from tests.bench.common import RATIO_HEAD, alternate, heading, parser, ratio, setup_from, spread, table
from tests.bench.servers import LLAMA_SERVER, LLAMA_SERVER_STREAMS, PYTHON_SERVER, ours, serving

THROUGHPUT_TARGET = 1.0
PYTHON_THROUGHPUT_TARGET, PYTHON_TTFT_TARGET = 1.1, 0.5


def main() -> int:
    options_parser = parser(__doc__, streams=16, n_prompt=256, n_predict=64)
    options_parser.add_argument("--without-python-server", action="store_true", help="leave llama_cpp.server out")
    options = options_parser.parse_args()
    setup = setup_from(options)
    us = ours()
    sides = [us, LLAMA_SERVER, LLAMA_SERVER_STREAMS]
    if not options.without_python_server:
        sides.append(PYTHON_SERVER)
    found: dict[str, list[Burst]] = defaultdict(list)

    def measure(side: str, n: int) -> None:
        with serving(side, setup) as server:
            warm_up(server, setup)
            found[side].append(run_burst(server, setup, prompt_texts(setup, setup.streams, n)))

    def middle(side: str, value: Callable[[Burst], float]) -> float:
        return median(map(value, found[side]))

    alternate(sides, setup.rounds, measure)
    print(heading(f"{setup.streams} streams", setup))
    rows = []
    for side in sides:
        bursts = found[side]
        columns: list[Callable[[Burst], float]] = [
            lambda b: b.seconds,
            lambda b: b.ttft_p50,
            lambda b: b.ttft_p95,
            lambda b: b.max_gap,
        ]
        seconds = [spread([value(burst) for burst in bursts], 2) for value in columns]
        prompts = f"{bursts[0].n_prompt:.0f}" if bursts[0].n_prompt else "same text"
        rows.append([side, spread([burst.rate for burst in bursts]), *seconds, prompts])
    print(table(("server", "tokens/s", "wall, s", "TTFT p50, s", "TTFT p95, s", "longest gap, s", "prompt tokens"), rows))
    print()
    rate = middle(us, lambda b: b.rate)
    ratios = [
        ratio(f"tokens/s ÷ {side}'s", rate, middle(side, lambda b: b.rate), THROUGHPUT_TARGET)
        for side in (LLAMA_SERVER, LLAMA_SERVER_STREAMS)
    ]
    if PYTHON_SERVER in sides:
        theirs = middle(PYTHON_SERVER, lambda b: b.ttft_p50)
        ratios.append(ratio(f"tokens/s ÷ {PYTHON_SERVER}'s", rate, middle(PYTHON_SERVER, lambda b: b.rate), PYTHON_THROUGHPUT_TARGET))
        ratios.append(
            ratio(f"TTFT p50 ÷ {PYTHON_SERVER}'s", middle(us, lambda b: b.ttft_p50), theirs, PYTHON_TTFT_TARGET, at_most=True),
        )
    print(table(RATIO_HEAD, ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
