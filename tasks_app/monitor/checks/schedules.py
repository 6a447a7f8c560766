"""Do schedules fire, and does a worker know their tasks?"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import rough
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.scheduling import clock
from tasks_app.pool.scheduling import find

PATIENCE = timedelta(minutes=1)
"""A schedule that should have fired longer ago was missed."""


def firing(connection: Connection, settings: Settings) -> list[Finding]:
    """Is each in time, readable, and known to a worker?"""
    now = clock(connection)
    schedules = [schedule for schedule in find(connection) if schedule.enabled]
    known = {
        name for worker in heartbeats.live(connection, settings.lease) for name in worker.handlers
    }
    findings: list[Finding] = []
    for schedule in schedules:
        due = schedule.next_run_at
        if schedule.remark is not None:
            advice = f"Mend it: tasks-app schedules change {schedule.name}."
            findings.append(fail("schedules", f"{schedule.name} is broken", advice))
        elif due is not None and now - due > PATIENCE:
            fact = f"{schedule.name} should have fired {rough(now - due)} ago"
            by = heartbeats.run_by(connection, settings.lease)
            findings.append(fail("schedules", fact, f"Nobody scans. {by.start_scan}"))
        elif due is not None and known and schedule.task not in known:
            fact = f"{schedule.name} makes tasks of {schedule.task}, known to no worker"
            advice = "Name its module in the TASKS_APP_IMPORTS of a worker, or disable it."
            findings.append(warn("schedules", fact, advice))
    return findings or [ok("schedules", f"{len(schedules)} enabled, none is late")]


CHECKS: tuple[Check, ...] = (firing,)
