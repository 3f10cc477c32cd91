"""Guessing ahead from a stream's own text: `--spec ngram` against `--spec off`, where text repeats its prompt and where it does not.

Usage: python -m tests.bench.bench_speculation [--rounds 3] [--streams 8] [--tokens 128]
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from tests.bench.clients import warm_up
from tests.bench.common import RATIO_HEAD, alternate, heading, parser, ratio, setup_from, spread, table
from tests.bench.load import Shot, Volley, fire
from tests.bench.servers import Running, ours, serving
from tests.bench.workloads import metric

OFF, NGRAM = "off", "ngram"
COPY_TARGET = {"Q4_0": 1.6}
"""By quantisation, where more than 1.3 is due: rows beyond the first cost less there."""
USUAL_COPY_TARGET, PROSE_TARGET = 1.3, 0.97

LETTER = (
    "Dear {name},\n\nThank you for your letter of {day} about the {thing}. We have looked into the matter and found that the {thing} was "
    "sent from our {place} office on time, but that it was held for some days at the station. We are sorry for the delay and will refund "
    "what you have paid for the journey. If you would like to speak to somebody about the {thing}, please call our {place} office between "
    "nine and five and ask for Mrs. Weaver, who knows the case."
)
BLANKS = {
    "name": ("Mr. Brennan", "Mrs. Keller", "Mr. Rossi", "Ms. Lind", "Mrs. Hughes"),
    "day": ("Monday", "Tuesday", "Friday"),
    "thing": ("clock", "bicycle", "piano", "desk", "painting", "lamp"),
    "place": ("Lisbon", "Dublin", "Vienna", "Oslo", "Turin"),
}
OPENINGS = (
    "The history of the town begins in the year",
    "She opened the door and saw that",
    "My favourite season is autumn, because",
    "When the train stopped for the third time, the old man",
    "Few people know how much work goes into",
    "The first thing that you learn at sea is",
    "In the kitchen of the small hotel",
    "What the scientists had not expected was",
)


@dataclass(frozen=True)
class Measured:
    """Tokens a second while they are generated; and of the guesses."""

    rate: float
    n_guessed: float
    n_right: float


def copy(source: random.Random, n_predict: int) -> Shot:
    """A letter comes twice; greedily it comes a third time."""
    text = LETTER.format(**{name: source.choice(values) for name, values in BLANKS.items()})
    prompt = f"First copy:\n\n{text}\n\nSecond copy:\n\n{text}\n\nThird copy:\n\nDear"
    return Shot(prompt=prompt, n_predict=n_predict, body={"cache_prompt": False})


def prose(source: random.Random, n_predict: int) -> Shot:
    """Drawn with a temperature, since greedy answers of small models end up repeating themselves; the seed is both sides'."""
    body = {"cache_prompt": False, "temperature": 0.8, "seed": source.randrange(1 << 30)}
    return Shot(prompt=source.choice(OPENINGS), n_predict=n_predict, body=body)


TEXTS: dict[str, Callable[[random.Random, int], Shot]] = {"copy": copy, "prose": prose}


def measure(server: Running, text: str, n_streams: int, n_predict: int, n: int) -> Measured:
    """`n_streams` at once. Both sides get the same texts in the same round."""
    source = random.Random(f"{text} {n_streams} {n}")
    names = ("capsule_draft_tokens_total", "capsule_draft_tokens_accepted_total")
    before = [metric(server, name) for name in names]
    volley = fire(server, [TEXTS[text](source, n_predict) for _ in range(n_streams)])
    guessed, right = (metric(server, name) - earlier for name, earlier in zip(names, before, strict=True))
    return Measured(_rate(volley), guessed, right)


def _rate(volley: Volley) -> float:
    """From the first piece to the last one; what came with the first pieces is not counted."""
    first, last = min(hit.arrivals[0] for hit in volley.hits), max(hit.end for hit in volley.hits)
    return (volley.n_tokens - len(volley.hits)) / (last - first)


def main() -> int:
    setup = setup_from(parser(__doc__, streams=8, n_prompt=240, n_predict=128).parse_args())
    cases = [(text, n_streams) for n_streams in dict.fromkeys((1, setup.streams)) for text in TEXTS]
    found: dict[tuple[str, int, str], list[Measured]] = defaultdict(list)

    def visit(side: str, n: int) -> None:
        with serving(ours(), setup, ["--spec", side]) as server:
            warm_up(server, setup)
            for text, n_streams in cases:
                found[text, n_streams, side].append(measure(server, text, n_streams, setup.n_predict, n))

    alternate((OFF, NGRAM), setup.rounds, visit)
    print(heading("Guesses from a stream's own text", setup))
    rows, ratios = [], []
    copy_target = next((gain for name, gain in COPY_TARGET.items() if name in setup.model.name), USUAL_COPY_TARGET)
    for text, n_streams in cases:
        rates = {}
        for side in (OFF, NGRAM):
            rounds = found[text, n_streams, side]
            rates[side] = median(one.rate for one in rounds)
            guessed, right = sum(one.n_guessed for one in rounds), sum(one.n_right for one in rounds)
            share = f"{right:.0f} of {guessed:.0f}" if guessed else "none"
            rows.append([text, str(n_streams), side, spread([one.rate for one in rounds]), share])
        # A crowd is not promised a gain: its rows are what a step's time goes into.
        target = copy_target if (text, n_streams) == ("copy", 1) else PROSE_TARGET
        ratios.append(ratio(f"{text}, streams: {n_streams}", rates[NGRAM], rates[OFF], target))
    print(table(("text", "streams", "--spec", "tokens/s", "guesses that were right"), rows))
    print()
    print(table(RATIO_HEAD, ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
