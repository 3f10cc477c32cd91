"""The ratios as one SVG picture, without a plotting library: a bar each on a logarithmic axis, the target as a tick. Knows no server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LABEL, WIDTH, ROW, TOP = 330, 470, 26, 46


@dataclass(frozen=True)
class Bar:
    """`value` and `target` as "how much better than the other side", so that longer is better and 1 is equal."""

    label: str
    value: float
    target: float


def svg(title: str, bars: Sequence[Bar]) -> str:
    lowest = min(0.5, *(min(bar.value, bar.target) for bar in bars))
    highest = max(2.0, *(max(bar.value, bar.target) for bar in bars))
    low, high = math.log10(lowest) - 0.05, math.log10(highest) + 0.1

    def x(value: float) -> float:
        return LABEL + WIDTH * (math.log10(max(value, lowest)) - low) / (high - low)

    height = TOP + ROW * len(bars) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + WIDTH + 80}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="12" y="24" font-size="15">{escape(title)}</text>',
    ]
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{height - 24}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - 10}" text-anchor="middle" fill="#666">{10**power:g} x</text>')
    for i, bar in enumerate(bars):
        y, start, end = TOP + ROW * i, x(1.0), x(bar.value)
        colour = "#2a7" if bar.value >= bar.target else "#c53"
        parts.append(f'<text x="{LABEL - 8}" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>')
        parts.append(f'<rect x="{min(start, end):.1f}" y="{y}" width="{abs(end - start):.1f}" height="18" fill="{colour}"/>')
        parts.append(
            f'<line x1="{x(bar.target):.1f}" x2="{x(bar.target):.1f}" y1="{y - 3}" y2="{y + 21}" stroke="black" stroke-width="2"/>'
        )
        parts.append(f'<text x="{max(start, end) + 5:.1f}" y="{y + 13}">{bar.value:.2f} x</text>')
    return "\n".join([*parts, "</svg>", ""])
