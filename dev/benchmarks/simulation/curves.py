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
    step = 10.0 ** math.floor(math.log10(most))
    step = step / 2 if most / step < 4 else step
    top = math.ceil(most / step) * step

    def across(x: float) -> float:
        span = math.log(xs[-1]) - math.log(xs[0])
        return LEFT + (WIDE - LEFT - RIGHT) * (math.log(x) - math.log(xs[0])) / span

    def up(y: float) -> float:
        return HIGH - BELOW - (HIGH - BELOW - 30) * y / top

    def say(x: float, y: float, what: str, more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {_TEXT} {more}>{what}</text>'

    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}"'
    parts = [f'<svg {box} role="img" aria-label="{beside}, by {below}">']
    parts.append(f'<rect width="{WIDE}" height="{HIGH}" fill="#fff"/>')
    parts.append(say(8, 16, f"{beside}; a line for each latency of a flush"))
    parts.append(say(LEFT, HIGH - 4, below))
    for tick in range(round(top / step) + 1):
        y = up(tick * step)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDE - RIGHT}" stroke="#ddd"/>')
        parts.append(say(LEFT - 6, y + 4, f"{tick * step:,.0f}", 'text-anchor="end"'))
    parts += [say(across(x), HIGH - BELOW + 16, f"{x:g}", 'text-anchor="middle"') for x in xs]
    for (name, points), colour in zip(lines.items(), COLOURS, strict=True):
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in points)
        last_x, last_y = points[-1]
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(say(across(last_x) + 6, up(last_y) + 4, name, f'fill="{colour}"'))
    return "\n".join([*parts, "</svg>"]) + "\n"
