"""Write ``docs/performance.md`` from the results: free text from a template, goals from here.

The page of all figures is the site's (``documents``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dev.benchmarks.environments import PROJECT
from dev.benchmarks.figures import Figures, Spread, read
from dev.benchmarks.goals import GOALS
from dev.benchmarks.plan import SCENARIOS, Scenario
from dev.benchmarks.systems import SYSTEMS
from dev.benchmarks.verdicts import Verdict, judge

TEMPLATE = PROJECT / "dev" / "benchmarks" / "performance.template.md"
PAGE = PROJECT / "docs" / "performance.md"
RESULTS = PROJECT / "dev" / "benchmarks" / "results"
SHOWN = (
    *("rate", "rate_from_scan", "seconds", "ms_per_step", "create_us", "share_of_ideal"),
    *("cpu_us_per_task", "backends_us_per_task", "transactions_per_task", "wal_bytes_per_task"),
    *("p50_ms", "p95_ms", "p99_ms", "max_ms", "commit_p50_ms", "commit_p99_ms"),
    *("ours_us", "bare_us", "driver_us", "ratio", "ratio_driver", "cpu_ratio"),
    *("cpu_s", "workers_cpu_s", "backends_cpu_s", "transactions_per_s"),
    *("growth_mib", "swing_mib", "grants_per_s", "cpu_ms_per_grant"),
)


def newest() -> list[Path]:
    """Return the newest file of results, as names sort by date, then by time of change."""
    files = sorted(RESULTS.glob("*.jsonl"), key=lambda path: (path.name[:10], path.stat().st_mtime))
    return files[-1:]


def write(inputs: Sequence[Path]) -> Path:
    PAGE.write_text(page(read(inputs), TEMPLATE.read_text(encoding="utf-8")), encoding="utf-8")
    return PAGE


def page(figures: Figures, template: str) -> str:
    parts = {
        "goals": _table(goal_rows(figures)),
        "machine": "\n".join(_machine(figures)),
        "trouble": "\n".join(_trouble(figures)),
    }
    for name, text in parts.items():
        template = template.replace(f"<!-- {name} -->", text)
    return template


def figures_page(figures: Figures) -> str:
    """Return the page of every scenario, for the site."""
    scenarios = "\n".join(line for part in SCENARIOS for line in _scenario(part, figures))
    return f"""# Measured figures

Written by `make site` from the newest results in `dev/benchmarks/results/`. How they were
measured, and what is unfair to whom: [performance](../performance.md). Medians, minimum and
maximum in brackets.

{scenarios.replace("### ", "## ")}
## Versions

{_table(_versions(figures))}
"""


def goal_rows(figures: Figures) -> Iterator[tuple[str, ...]]:
    """Yield the table of what must be shown, heading first."""
    yield ("metric", "ours", "theirs", "value", "must", "aim", "met")
    for goal in GOALS:
        yield _goal(judge(goal, figures))


def _goal(verdict: Verdict) -> tuple[str, ...]:
    goal = verdict.goal
    sign, unit = {"least": ">=", "most": "<="}[goal.at], f" {goal.unit}".replace(" x", " x")
    theirs = f"{_span(verdict.theirs)} ({verdict.best})" if verdict.theirs else ""
    value = "" if verdict.value is None else f"**{_number(verdict.value)}{unit}**"
    aim = "" if goal.aim is None else f"{sign} {_number(goal.aim)}"
    ours = _span(verdict.ours) + (f" ({verdict.way})" if goal.or_ours and verdict.way else "")
    return goal.metric, ours, theirs, value, f"{sign} {_number(goal.must)}", aim, verdict.met


def _scenario(scenario: Scenario, figures: Figures) -> Iterator[str]:
    shown = [
        figure
        for figure in SHOWN
        if any(figures.spread(scenario.name, entry.name, figure) for entry in scenario.entries)
    ]
    if not shown:
        return
    yield f"### {scenario.title}\n"
    rows: list[tuple[str, ...]] = [("system", "tasks", "runs", *(_heading(name) for name in shown))]
    for entry in scenario.entries:
        runs = figures.runs.get((scenario.name, entry.name), [])
        good = [run for run in runs if "failed" not in run]
        if good:
            spans = [_span(figures.spread(scenario.name, entry.name, name)) for name in shown]
            rows.append((entry.name, f"{good[0]['n']:,}", str(len(good)), *spans))
    yield _table(rows) + "\n"


def _machine(figures: Figures) -> Iterator[str]:
    for session in figures.sessions:
        about = session["machine"]
        servers = ", ".join(f"{name} {version}" for name, version in session["servers"].items())
        yield (
            f"- {session['at'][:16].replace('T', ' ')} UTC, commit {session['commit']}:"
            f" {about['cores']} x {about['cpu']}, {about['memory_gib']} GiB, {about['system']};"
            f" {servers}; load before the start {about['load']}"
        )


def _versions(figures: Figures) -> Iterator[tuple[str, ...]]:
    yield ("system", "as it ran", "versions")
    for name, versions in figures.versions.items():
        text = ", ".join(f"{package} {version}" for package, version in versions.items())
        if name in SYSTEMS:  # else it was measured once, and is gone
            yield name, SYSTEMS[name].title, text


def _trouble(figures: Figures) -> Iterator[str]:
    runs = sum(len(found) for found in figures.runs.values())
    failed = len(figures.failures())
    yield f"{runs} runs; {runs - failed} passed their audits, {failed} failed.\n"
    for run in figures.failures():
        words = " ".join(run["failed"].split())[:300]
        yield f"- FAILED: {run['scenario']}, {run['system']}, round {run['round']}: {words}"
    left_out: dict[str, list[str]] = {}
    for (scenario, system), reason in figures.left_out.items():
        left_out.setdefault(" ".join(reason.split())[:300], []).append(f"{scenario} ({system})")
    for reason, where in left_out.items():
        yield f"- not measured: {', '.join(where)}: {reason}"


def _heading(figure: str) -> str:
    known: dict[str, str] = {
        "rate": "tasks/s",
        "rate_from_scan": "tasks/s from the first scan",
        "cpu_us_per_task": "CPU µs per task",
        "backends_us_per_task": "of it in PostgreSQL",
        "transactions_per_s": "transactions/s",
        "grants_per_s": "grants/s",
        "cpu_ms_per_grant": "contenders' CPU ms per grant",
        "transactions_per_task": "transactions per task",
        "commit_p50_ms": "p50 ms from the commit",
        "commit_p99_ms": "p99 ms from the commit",
        "wal_bytes_per_task": "WAL bytes per task",
    }
    return known.get(figure, figure.replace("_", " "))


def _span(spread: Spread | None) -> str:
    if spread is None:
        return ""
    low, high = min(spread.values), max(spread.values)
    middle = _number(spread.median)
    return middle if low == high else f"{middle} ({_number(low)} - {_number(high)})"


def _number(value: float) -> str:
    for bound, digits in ((100, 0), (10, 1), (0, 2)):
        if abs(value) >= bound:
            return f"{value:,.{digits}f}"
    return str(value)


def _table(rows: Iterable[Sequence[Any]]) -> str:
    heading, *rest = rows
    lines = [heading, ["---"] * len(heading), *rest]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
