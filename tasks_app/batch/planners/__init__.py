"""Planners: each splits a source in its own way. What they make is checked before it is used."""

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
        """Split; writes nothing unless the planner says so.

        Raises PlanError if it cannot be split so.
        """


def timed(plan: Callable[P, Plan]) -> Callable[P, Plan]:
    """Write into plans how long it took to make them."""

    @wraps(plan)
    def made(*args: P.args, **kwargs: P.kwargs) -> Plan:
        began = time.monotonic()
        return replace(plan(*args, **kwargs), seconds=time.monotonic() - began)

    return made
