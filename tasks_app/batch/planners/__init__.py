"""Planners: each splits a source in its own way. Every plan is checked before it is used."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import ParamSpec, Protocol

from sqlalchemy import Connection

from tasks_app.domain.partition.records import Plan
from tasks_app.pool.batch.sources.relation import Source

P = ParamSpec("P")


class Planner(Protocol):
    """Splits a source of the database."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Raises PlanError if it cannot be split so. Writes nothing unless the planner says so."""


def timed(plan: Callable[P, Plan]) -> Callable[P, Plan]:
    """Add to a plan how many seconds it took."""

    @wraps(plan)
    def made(*args: P.args, **kwargs: P.kwargs) -> Plan:
        began = time.monotonic()
        return replace(plan(*args, **kwargs), seconds=time.monotonic() - began)

    return made
