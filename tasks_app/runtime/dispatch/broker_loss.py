"""Broker loss: whether a broker was wiped, or a queue deleted, is known only by asking.

If no child has begun a message, and its queue is empty in the broker, the message is lost, or lies
in a worker behind busy children. To publish it again costs little: a second copy finds nothing to
claim, and while one waits in the queue, the queue is not empty.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tasks_app.pool.dispatch import ledger
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.publisher import Publisher


def forgotten_queues(
    database: Database, publisher: Publisher, wait: timedelta, *, now: datetime | None = None
) -> list[str]:
    """Return the queues that are empty in the broker, although messages of theirs are out.

    The broker is asked outside of any transaction, and only where something stalls.
    """
    with database.begin() as connection:
        stalled = ledger.stalled(connection, wait, now=now)
    forgotten = []
    for queue in stalled:
        depth = publisher.depth(queue)
        if depth is None:  # the broker is away; asking on would only take time
            break
        if depth == 0:
            forgotten.append(queue)
    return forgotten
