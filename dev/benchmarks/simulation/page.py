"""The part of docs/scaling.md that the model writes.

What was measured, how well the model met it, and what it says of machines that we do not have.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dev.benchmarks.environments import PROJECT
from dev.benchmarks.simulation.curves import draw
from dev.benchmarks.simulation.measure import Record, read
from dev.benchmarks.simulation.model import simulate
from dev.benchmarks.simulation.observe import Trial
from dev.benchmarks.simulation.profiles import MOST_OTHERS, Profiles, checks, profiles, usable
from dev.benchmarks.sizing.costs import Deployment
from dev.benchmarks.sizing.expectation import ExpectedRate, expect

PAGE, PICTURE = PROJECT / "docs" / "scaling.md", PROJECT / "docs" / "scaling.svg"
BEGIN = "<!-- model: begin (written by make scaling) -->"
END = "<!-- model: end -->"
TITLES = {
    "noop": "no-op, in groups of 500",
    "insert": "one INSERT, a commit each",
    "sleep": "waits 100 ms, 8 threads",
    "sleep_async": "waits 1 s, async, 1,000 at once",
}
FLUSHES_MS = (0.1, 0.5, 1.0, 2.0, 5.0)
HOSTS, DATABASES = (1, 2, 5, 10, 20), (4, 8, 16, 32, 64)
TRIP_S = 0.000_2
"""Between hosts of one data centre, beside what is measured within one."""
LETTERS = {"workers": "w", "database": "d", "beat": "b", "log": "l", "children": ""}


def write() -> None:
    """Compute everything anew, and put it in its place."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{part()}\n{END}{after}")
    PICTURE.write_text(picture())


def part() -> str:
    """Return what stands between the marks."""
    found = profiles()
    return "\n".join([*_costs(found), *_checks(found), *_hosts(found), *_databases(found)])


def _costs(found: Profiles) -> Iterator[str]:
    rounds = f"medians of {found.rounds} rounds"
    yield f"**Measured**: costs of a task, one child on two cores, {rounds}."
    yield ""
    yield "| handler | child, CPU | PostgreSQL, CPU | beat | answers waited for | flushes |"
    yield "|---|---|---|---|---|---|"
    for handler, title in TITLES.items():
        cost = found.costs[handler]
        cpu = [_us(cost.child_s + cost.parent_s), _us(cost.database_s), _us(cost.beat_s)]
        yield f"| {title} | {' | '.join(cpu)} | {cost.trips:.3g} | {cost.flushes:.2g} |"
    yield ""
    yield (
        f"Between them: {_us(found.trip_s)} for a round trip beside the CPU of both ends (between "
        f"hosts {_us(TRIP_S)} more are assumed), {_us(found.flush_s)} for a flush of the log, "
        f"{_us(found.costs['noop'].log_s)} for a task's part of it; a core "
        f"takes {found.slowdown:.2f} times as long while the other one is busy."
    )
    yield ""


def _checks(found: Profiles) -> Iterator[str]:
    every = [record for record in read() if record["kind"] == "checks"]
    clean = usable(every)
    yield (
        f"**Measured and computed**: drains of this machine under limits. {len(clean)} of "
        f"{len(every)} ran undisturbed; those beside which other processes took more than "
        f"{MOST_OTHERS:.0%} of their cores are left out."
    )
    yield ""
    heads = ("by the costs above", "by its own costs", "the same by formula")
    yield f"| handler | cores | children | commit delay | measured | {' | '.join(heads)} |"
    yield "|---|---|---|---|---|---|---|---|"
    errors: dict[str, list[float]] = {name: [] for name in heads}
    for trial, records in checks(clean):
        measured = statistics.median(record["rate"] for record in records)
        cells = []
        for name, rate in zip(errors, predicted(found, trial, records), strict=True):
            error = rate / measured - 1
            errors[name].append(abs(error))
            cells.append(f"{rate:,.0f} ({error:+.0%})")
        delay = f"{trial.delay_us / 1000:g} ms" if trial.delay_us else "-"
        yield (
            f"| {TITLES[trial.handler]} | {trial.cores} | {trial.children} | {delay} "
            f"| {measured:,.0f} | {' | '.join(cells)} |"
        )
    yield ""
    yield (
        ", ".join(
            f"{name}: half of the errors are below {statistics.median(each):.0%}, the largest is "
            f"{max(each):.0%}"
            for name, each in errors.items()
        )
        + "."
    )
    yield ""


def predicted(found: Profiles, trial: Trial, records: Sequence[Record]) -> list[float]:
    """Return the rates: by the costs of the table, and twice by those that this drain had."""
    delay_s, where = trial.delay_us / 1e6, found.here(trial)
    unit_ms = statistics.median(record["unit_ms"] for record in records)
    own, flush_s = found.own(trial.handler, records)
    # Their CPU was measured while the other core was as busy as it was.
    then = replace(where, slowdown=1.0, flush_s=flush_s)
    return [
        simulate(found.at(trial.handler, unit_ms), where, delay_s=delay_s).rate,
        simulate(own, then, delay_s=delay_s).rate,
        expect(own, replace(then, flush_s=flush_s + delay_s)).rate,
    ]


def _hosts(found: Profiles) -> Iterator[str]:
    yield "**Computed**: hosts of 16 cores with 16 children each, a database of 16 cores; tasks/s."
    yield ""
    for handler in ("insert", "noop"):
        heads = [f"flush {flush:g} ms" for flush in FLUSHES_MS]
        yield f"| {TITLES[handler]} | connections | {' | '.join(heads)} |"
        yield "|---|---|" + "---|" * len(heads)
        for hosts in HOSTS:
            places = [_place(found, hosts, 16, 16, flush) for flush in FLUSHES_MS]
            cells = [_cell(_simulated(found, handler, place)) for place in places]
            yield f"| {_hosts_of(hosts)} | {places[0].connections:,} | {' | '.join(cells)} |"
        yield ""


def _databases(found: Profiles) -> Iterator[str]:
    yield (
        "**Computed**: how many children it takes to keep a database busy to 80 %, with one INSERT "
        "and a commit each, and what it does then; children / tasks/s / connections."
    )
    yield ""
    yield f"| cores of the database | {' | '.join(f'flush {flush:g} ms' for flush in FLUSHES_MS)} |"
    yield "|---|" + "---|" * len(FLUSHES_MS)
    for cores in DATABASES:
        cells = []
        for flush in FLUSHES_MS:
            place, reached = _enough(found, cores, flush)
            cells.append(
                f"{place.all_children:,} / {_rounded(reached.rate)} / {place.connections:,}"
            )
        yield f"| {cores} | {' | '.join(cells)} |"
    yield ""


def _enough(found: Profiles, cores: int, flush_ms: float) -> tuple[Deployment, ExpectedRate]:
    """Return the fewest children, by the formula; the simulation says what they do."""
    fewest, most = 1, 4096
    while fewest < most:
        middle = (fewest + most) // 2
        place = _place(found, 1, middle, cores, flush_ms, middle)
        if expect(found.costs["insert"], place).used["database"] >= 0.8:
            most = middle
        else:
            fewest = middle + 1
    place = _place(found, 1, fewest, cores, flush_ms, fewest)
    return place, _simulated(found, "insert", place)


def _place(
    found: Profiles, hosts: int, children: int, database: int, flush_ms: float, cores: int = 16
) -> Deployment:
    return Deployment(
        children=children,
        hosts=hosts,
        cores=cores,
        database_cores=database,
        flush_s=flush_ms / 1e3,
        trip_s=found.trip_s + TRIP_S,
        slowdown=found.slowdown,
    )


def _simulated(found: Profiles, handler: str, where: Deployment) -> ExpectedRate:
    return simulate(found.costs[handler], where)


def picture() -> str:
    """Return the drawing of one INSERT each, by hosts, a line for each latency of the flush."""
    found = profiles()
    lines = {
        f"{flush:g} ms": [
            (hosts, _simulated(found, "insert", _place(found, hosts, 16, 16, flush)).rate)
            for hosts in HOSTS
        ]
        for flush in FLUSHES_MS
    }
    return draw(lines, "hosts of 16 children", "tasks/s, one INSERT and a commit each")


def _cell(expected: ExpectedRate) -> str:
    return f"{_rounded(expected.rate)} {LETTERS[expected.limit]}".rstrip()


def _rounded(rate: float) -> str:
    """Return three digits: it is a computation."""
    return f"{float(f'{rate:.3g}'):,.0f}"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _hosts_of(number: int) -> str:
    return f"{number} host" + "s" * (number > 1)
