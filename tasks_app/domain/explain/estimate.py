"""When a task in line probably starts, from what ended while that line stood."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import dropwhile
from math import sqrt
from statistics import fmean, variance

from tasks_app.domain.durations import rough_span
from tasks_app.domain.explain.facts import MOST_AHEAD, Line, TaskFacts

WITHIN = timedelta(minutes=15)
LEAST_MINUTES = 3
LEAST_WAITED = 0.5  # less than the first of the line: tasks that came later went before it
MOST_UNEVEN = 10.0  # p95 may be so many times p50: beyond that neither says anything
_Z = 1.645  # 95 % of a normal distribution lie below so many standard deviations


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a waiting task probably starts."""

    p50: datetime
    """As likely before as after."""
    p95: datetime
    """In 95 of 100 cases it has started by then."""
    a_minute: float
    """Runs of its queue that ended, on average."""
    minutes: int
    """From how many minutes that is known."""


def estimate(now: datetime, place: int, ended: tuple[int, ...]) -> Estimate | None:
    """Return when so many more runs have probably ended; ``ended``: in each minute lately.

    None: too few minutes are known, or they are too uneven.
    """
    if len(ended) < LEAST_MINUTES or not any(ended):
        return None
    minutes, mean = len(ended), fmean(ended)
    # A prediction interval. In t minutes mean * t runs end; the variance of that is spread * t,
    # and spread * t² / minutes more since the mean is only an estimate. Solved for t.
    spread = max(variance(ended), mean)  # at least that of runs which end independently
    slope = mean**2 - _Z**2 * spread / minutes
    if slope <= 0:
        return None
    half = mean * place + _Z**2 * spread / 2
    likely, late = place / mean, (half + sqrt(half**2 - slope * place**2)) / slope
    if late > MOST_UNEVEN * likely:
        return None
    return Estimate(now + timedelta(minutes=likely), now + timedelta(minutes=late), mean, minutes)


def estimated_start(facts: TaskFacts) -> tuple[Estimate | None, str]:
    """Return the estimate of a task that waits in line, and words for it, or why there is none."""
    row, line = facts.row, facts.line
    if row is None or line is None or row.crashes or row.at_most_once:
        return None, ""
    ended = tuple(dropwhile(lambda number: not number, line.ended))
    if len(ended) < len(line.ended):  # the queue stood still, and began within a minute
        ended = ended[1:]
    found = None
    if not _is_overtaken(line):
        found = estimate(facts.now, min(line.ahead, MOST_AHEAD) + 1, ended)
    if found is None:
        return None, _why_not(line, ended) if line.ahead else ""
    pace = f"{found.a_minute:,.0f}" if found.a_minute >= 10 else f"{found.a_minute:.1f}"  # noqa: PLR2004  two digits
    soon, late = (rough_span(at - facts.now) for at in (found.p50, found.p95))
    words = f"at {pace} runs a minute, as in the last {found.minutes} minutes, it probably starts"
    if line.ahead > MOST_AHEAD:
        return None, f"{words} in more than {soon}"
    return found, f"{words} in {soon} (p50), within {late} (p95)"


def _is_overtaken(line: Line) -> bool:
    """Whether tasks that came later go first, as those of a better priority do."""
    return line.is_shared or (line.waited is not None and line.waited < LEAST_WAITED)


def _why_not(line: Line, ended: tuple[int, ...]) -> str:
    if line.is_shared:
        return "no estimate: its queue is shared by fair_key"
    if not ended and len(line.ended) >= LEAST_MINUTES:
        within = f"{len(line.ended)} minutes"
        return f"no estimate: no run of its queue has ended in the last {within}"
    if len(ended) < LEAST_MINUTES:
        return f"no estimate yet: that needs {LEAST_MINUTES} minutes in which its line moves"
    if _is_overtaken(line):
        return "no estimate: tasks that came later, as of a better priority, go first"
    return "no estimate: the runs of its queue end too unevenly"
