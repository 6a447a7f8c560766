"""A message to publish."""

from __future__ import annotations

from datetime import UTC, datetime

from tasks_app.pool.dispatch.ledger import Dispatch


def message(number: int, queue: str = "counted", ids: tuple[int, ...] = ()) -> Dispatch:
    return Dispatch(number, queue, ids or (number,), datetime.now(UTC))
