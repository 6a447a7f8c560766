"""Lines over a logarithmic axis, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDE, HIGH, LEFT, BELOW, RIGHT = 640, 320, 64, 36, 70
COLOURS = ("#1b6ca8", "#2a9d8f", "#8a9a2b", "#e09f3e", "#c1443c")
_TEXT = 'font-family="sans-serif" font-size="12"'


def draw(lines: Mapping[str, Sequence[tuple[float, float]]], below: str, beside: str) -> str:
    """Return the drawing; both axes begin at nothing but the lower one, which is logarithmic."""
    xs = sorted({x for points in lines.values() for x, _ in points})
    most = max(y for points in lines.values() for _, y in points)
    step = 10 ** math.floor(math.log10(most))
    step = step / 2 if most / step < 4 else step
    top = math.ceil(most / step) * step

    def across(x: float) -> float:
        span = math.log(xs[-1]) - math.log(xs[0])
        return LEFT + (WIDE - LEFT - RIGHT) * (math.log(x) - math.log(xs[0])) / span

    def up(y: float) -> float:
        return HIGH - BELOW - (HIGH - BELOW - 30) * y / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{beside}, by {below}">',
        f'<rect width="{WIDE}" height="{HIGH}" fill="#fff"/>',
        f'<text x="8" y="16" {_TEXT}>{beside}; a line for each latency of a flush</text>',
        f'<text x="{LEFT}" y="{HIGH - 4}" {_TEXT}>{below}</text>',
    ]
    for tick in range(round(top / step) + 1):
        y = up(tick * step)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDE - RIGHT}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" {_TEXT}>{tick * step:,.0f}</text>'
        )
    for x in xs:
        parts.append(
            f'<text x="{across(x):.1f}" y="{HIGH - BELOW + 16}" text-anchor="middle" {_TEXT}>'
            f"{x:g}</text>"
        )
    for (name, points), colour in zip(lines.items(), COLOURS, strict=True):
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in points)
        last_x, last_y = points[-1]
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{across(last_x) + 6:.1f}" y="{up(last_y) + 4:.1f}" fill="{colour}" {_TEXT}>'
            f"{name}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
