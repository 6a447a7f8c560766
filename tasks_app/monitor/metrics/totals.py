"""From the counters to totals and histograms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.statistics.histogram import merged
from tasks_app.domain.statistics import OTHER
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.monitor import metric_catalogue as m
from tasks_app.monitor.metric_catalogue import Metric
from tasks_app.monitor.metrics.exposition import Sample, histogram
from tasks_app.pool.metrics.created import created
from tasks_app.pool.statistics.totals import totals as read

MOST_HISTOGRAMS = 100
"""Names, and queues, that have a histogram of their own: those that were seen first."""
_EVENTS = {
    CountedOutcome.STALE: m.STALE_WRITES,
    CountedOutcome.DUPLICATE: m.DUPLICATES,
    CountedOutcome.LEFT: m.RUNS_LEFT,
}


def totals(connection: Connection, _settings: Settings) -> Iterator[Sample]:
    """Say what was, since counting began."""
    found = read(connection)
    events = dict.fromkeys(_EVENTS, 0)
    for each in found:
        if each.outcome in events:
            events[each.outcome] += each.number
        elif each.outcome is not CountedOutcome.UNKEPT:
            labels = (each.name, each.queue, each.outcome.name.lower())
            yield Sample(m.OUTCOMES, each.number, labels)
    for outcome, number in events.items():
        yield Sample(_EVENTS[outcome], number)
    done = [each for each in found if each.outcome is CountedOutcome.DONE]
    yield from _histograms(m.WAITED, ((t.queue, t.waits, t.wait_ms) for t in done))
    yield from _histograms(m.RAN, ((t.name, t.runs, t.run_ms) for t in done))
    given = created(connection)
    if given is not None:
        yield Sample(m.CREATED, given)


def _histograms(
    metric: Metric, found: Iterable[tuple[str, Sequence[int], int]]
) -> Iterator[Sample]:
    sums: dict[str, tuple[list[int], int]] = {}
    for key, buckets, ms in found:
        label = key if key in sums or len(sums) < MOST_HISTOGRAMS else OTHER
        before, sum_ms = sums.get(label, ([], 0))
        sums[label] = merged(before, buckets), sum_ms + ms
    for label, (counts, sum_ms) in sums.items():
        yield from histogram(metric, counts, sum_ms, (label,))
