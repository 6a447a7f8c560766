"""A check-up of the shared database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from tasks_app import Settings
from tasks_app.domain.finding import Finding
from tasks_app.monitor.checks import work
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.operations.diagnostics import due_work
from tasks_app.pool.runs import heartbeats

Run = Callable[..., list[Finding]]
OF_DUE_WORK = (work.reach, work.waiting, work.shared)


def said(findings: list[Finding]) -> list[str]:
    return [f"{f.level} {f.subject}: {f.fact}" for f in findings]


def levels(findings: list[Finding]) -> list[str]:
    return [str(finding.level) for finding in findings]


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url)


@pytest.fixture
def run(connection: Connection, settings: Settings) -> Run:
    """Run checks, with other settings if some are given."""

    def run(*checks: Callable[..., list[Finding]], **given: object) -> list[Finding]:
        findings: list[Finding] = []
        for check in checks:
            due = (due_work(connection),) if check in OF_DUE_WORK else ()
            findings += check(connection, settings.model_copy(update=given), *due)
        return findings

    return run


def a_child(
    connection: Connection, owner: str = "w", node: str = "n@host", **given: list[str]
) -> None:
    known = {"queues": ["default"], "handlers": ["t"], **given}
    heartbeats.write_heartbeat(connection, owner=owner, node=node, **known)


def a_scan(connection: Connection, rank: leader_lease.Rank = leader_lease.Rank.BEAT) -> None:
    ttl = timedelta(seconds=5)
    token = uuid4()
    leader_lease.acquire_lease(
        connection, leader_lease.SCAN, holder="b@host", token=token, rank=rank, ttl=ttl
    )
    leader_lease.record_duty(connection, leader_lease.SCAN, token, ttl)
