"""One stream at a time: our tokens per second against llama-server's.

Usage: python -m tests.bench.bench_single [--rounds 3] [--tokens 200] [--threads N]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from statistics import median

from tests.bench.clients import Timed, prompt_texts, run_burst, warm_up
from tests.bench.common import RATIO_HEAD, alternate, heading, parser, ratio, setup_from, spread, table
from tests.bench.servers import LLAMA_SERVER_STREAMS, ours, serving

REQUESTS = 3
"""In each round, one after the other."""
TARGET = 0.97


def main() -> int:
    options = parser(__doc__, streams=4, n_prompt=64, n_predict=200).parse_args()
    setup = setup_from(options)
    sides = [ours(), LLAMA_SERVER_STREAMS]
    found: dict[str, list[Timed]] = defaultdict(list)

    def measure(side: str, n: int) -> None:
        with serving(side, setup) as server:
            warm_up(server, setup)
            for prompt in prompt_texts(setup, REQUESTS, n):
                found[side] += run_burst(server, setup, [prompt]).streams

    alternate(sides, setup.rounds, measure)
    print(heading(f"One stream ({setup.streams} slots, one used)", setup))
    rows = [
        [side, spread([t.decode_rate for t in found[side]]), spread([t.ttft * 1000 for t in found[side]], 0), f"{found[side][0].n_prompt}"]
        for side in sides
    ]
    print(table(("server", "tokens/s", "first token, ms", "prompt tokens"), rows))
    print()
    rates = [median(t.decode_rate for t in found[side]) for side in sides]
    print(table(RATIO_HEAD, [ratio("tokens/s ÷ llama-server's", rates[0], rates[1], TARGET)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
