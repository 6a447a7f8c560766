"""All kinds of faults at once: one long run, and its section of the report."""

from __future__ import annotations

from collections.abc import Iterable

from dev.torture.run import Plan, Report
from dev.torture.verdict import Check


def section(plan: Plan, report: Report, seconds: float, command: str) -> str:
    """Write a run's result as Markdown; it follows the table of the kinds."""
    workers = "`tasks-app work`, no broker" if plan.engine else "Celery workers, two beats"
    injected = sum(report.world.counts.values())
    return f"""
## All at once: {plan.tasks:,} tasks, {workers}

`{command}`, seed {plan.seed}, on {plan.surroundings.words}; lease {plan.lease_s:g} s.
{"Passed" if report.passed else "FAILED"} after {seconds:.0f} s, {report.recovery_s:.0f} s of them \
after the last fault. {injected:,} injections:

| injections | fault |
|---|---|
{_rows((number, what) for what, number in sorted(report.world.counts.items()))}

| figure | |
|---|---|
{_rows((check.figure, _told(check)) for check in report.checks)}
{_rows((figure, what) for what, figure in report.remarks)}
"""


def _told(check: Check) -> str:
    return check.sentence if check.holds else f"BROKEN: {check.sentence}"


def _rows(pairs: Iterable[tuple[object, str]]) -> str:
    return "\n".join(f"| {figure} | {what} |" for figure, what in pairs)
