"""Fences in SQL: which rows a child still owns, asked for many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tasks_app.domain.tasks.run import Fence
from tasks_app.pool.tables import PENDING

FENCES = """
    unnest(CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:tokens AS uuid[]))
        AS f(id, attempt, token)
"""
"""A FROM clause for :func:`fence_arrays`."""


def fenced(guard: str, lock: str = "", *, fences: str = FENCES) -> str:
    """Return a FROM clause of the rows ``p`` whose fence holds, looked up one by one.

    They are locked in the order of ``fences``. Each has a subquery of its own: the plan of a join
    would depend on two sizes that the planner can only guess.
    """
    return f"""{fences} CROSS JOIN LATERAL (
        SELECT * FROM {PENDING} p
        WHERE p.id = f.id AND p.attempt = f.attempt AND p.lease_token = f.token AND {guard}
        {lock or "OFFSET 0"}) AS p"""


def fence_arrays(fences: Sequence[Fence]) -> dict[str, str]:
    """Return the parameters, ids ascending."""
    ordered = sorted(fences)
    return {
        "ids": array(fence.task_id for fence in ordered),
        "attempts": array(fence.attempt for fence in ordered),
        "tokens": array(_hexes(ordered)),
    }


def _hexes(fences: Iterable[Fence]) -> Iterator[str]:
    """Convert a token once for all fences of its claim."""
    token, text = None, ""
    for fence in fences:
        if fence.token is not token:
            token, text = fence.token, fence.token.hex
        yield text


def array(values: Iterable[object]) -> str:
    """Return a PostgreSQL array of numbers, words or nulls, which need no quotes.

    The driver takes five times as long to write one, element by element.
    """
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"
