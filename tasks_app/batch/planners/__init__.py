"""Planners: each splits a source in its own way. What they make is checked before it is used."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

from tasks_app.domain.partition.records import Plan
from tasks_app.pool.batch.relation import Source


class Planner(Protocol):
    """What splits a source of the database."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split; writes nothing unless the planner says so.

        Raises:
            PlanError: it cannot be split so.
        """
