"""Fences in SQL: which rows a child still owns, asked for many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks_app.domain.task import Fence
from tasks_app.pool.tables import PENDING

FENCED = f"""
    {PENDING} p JOIN unnest(
        CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:tokens AS uuid[]))
        AS f(id, attempt, token) ON f.id = p.id
"""
"""A FROM clause for :func:`fence_arrays`; ``MATCHES`` belongs to it."""
MATCHES = """
    p.id = ANY(CAST(:ids AS bigint[])) AND p.attempt = f.attempt AND p.lease_token = f.token
"""
"""The ids stand here again so that the planner looks rows up, whatever it believes of the table."""


def fence_arrays(fences: Sequence[Fence]) -> dict[str, list[Any]]:
    """Return the parameters."""
    return {
        "ids": [fence.task_id for fence in fences],
        "attempts": [fence.attempt for fence in fences],
        "tokens": [fence.token for fence in fences],
    }
