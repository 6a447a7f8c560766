"""The plot of a history as SVG; its colours are of the page's style sheet."""

from __future__ import annotations

from html import escape

from tasks_app.domain.explain.words import exact
from tasks_app.monitor.pages.history import Bar, History

WIDE, HIGH, FULL = 10, 100, 96
"""Of a bar and of the plot, in its own units; FULL is the highest bar."""


def plot(history: History) -> str:
    """Return stacked bars of what was done, was retried and failed."""
    label = (
        f"{history.done} done, {history.failed} failed and {history.retried} retried "
        f"within {history.within}"
    )
    bars = "\n".join(_bar(n, bar, history.highest) for n, bar in enumerate(history.bars))
    return (
        f'<svg class="plot" viewBox="0 0 {WIDE * len(history.bars)} {HIGH}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(label)}">\n{bars}\n</svg>'
    )


def _bar(number: int, bar: Bar, highest: int) -> str:
    title = f"{exact(bar.at)}: {bar.done} done, {bar.failed} failed, {bar.retried} retried"
    parts, top = [], float(HIGH)
    for shape, amount in (("ok", bar.done), ("again", bar.retried), ("bad", bar.failed)):
        height = FULL * amount / highest
        top -= height
        parts.append(
            f'<rect class="{shape}" x="{number * WIDE + 1}" y="{top:.2f}" width="{WIDE - 2}" '
            f'height="{height:.2f}"/>'
        )
    hit = f'<rect class="hit" x="{number * WIDE}" y="0" width="{WIDE}" height="{HIGH}"/>'
    return f"<g><title>{title}</title>{hit}{''.join(parts)}</g>"
