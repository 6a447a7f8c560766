"""Planners: each splits a source in its own way. Every plan is checked before it is used."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

from tasks_app.domain.partition.records import Plan
from tasks_app.pool.batch.sources.relation import Source


class Planner(Protocol):
    def plan(self, connection: Connection, source: Source) -> Plan:
        """Raises PlanError if it cannot be split so. Writes nothing unless the planner says so."""
