"""Fair queues: which tasks go next, as one process that publishes or claims sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil

from sqlalchemy import Connection

from tasks_app.domain.flow_control.fair_share import FairLine, Pick, Shares
from tasks_app.pool.dispatch.scan import DueRows
from tasks_app.pool.flow_control.fair_queues import Head, fair_queues, heads, lines

GENEROUS = 2
"""Each key's tasks are read to twice its share: other keys may have fewer tasks than theirs."""


class Fairness:
    """Remembers how much each key had, for as long as the process lives."""

    def __init__(self) -> None:
        self._shares: dict[str, Shares] = {}
        self._after: dict[str, str] = {}
        self._picks: dict[str, list[Pick]] = {}

    def among(self, connection: Connection, queues: Collection[str]) -> set[str]:
        """Return which of these queues are fair at the moment."""
        weights = fair_queues(connection)
        self._shares = {queue: self._shares.get(queue, Shares()) for queue in weights}
        for queue, given in weights.items():
            self._shares[queue].weights = given
        return weights.keys() & queues

    def due(
        self,
        connection: Connection,
        queue: str,
        most: int,
        out: Mapping[int, float],
        *,
        names: Sequence[str] | None = None,
        lock: bool = False,
        now: datetime | None = None,
    ) -> DueRows | None:
        """Return up to ``most`` due rows of a queue in the order in which they shall run.

        Nothing is charged for them before :meth:`went`. None: there is nothing.
        """
        shares = self._shares[queue]
        found, self._after[queue] = lines(connection, queue, self._after.get(queue, ""))
        keys = {line.key for line in found}
        wanted = {
            line: min(most, 2 + ceil(GENEROUS * most * shares.share(line.key, keys)))
            for line in found
        }

        def read(some: Mapping[FairLine, int]) -> dict[FairLine, list[Head]]:
            return heads(connection, queue, some, out, names=names, lock=lock, now=now)

        waiting = read(wanted)
        if sum(map(len, waiting.values())) < most:  # the others have what these leave
            full = {
                line: most for line, some in waiting.items() if wanted[line] == len(some) < most
            }
            waiting |= read(full) if full else {}
        by_id = {head.id: head for some in waiting.values() for head in some}
        ids = {line: [head.id for head in some] for line, some in waiting.items()}
        self._picks[queue] = picks = shares.order(ids, most)
        if not picks:
            return None
        return DueRows(
            queue,
            [pick.id for pick in picks],
            [by_id[pick.id].name for pick in picks],
            [pick.line.priority for pick in picks],
            [by_id[pick.id].scan_at for pick in picks],
            frozenset(pick.id for pick in picks if by_id[pick.id].barred),
            frozenset(pick.id for pick in picks if by_id[pick.id].gated),
            frozenset(pick.id for pick in picks if by_id[pick.id].held),
        )

    def went(self, queue: str, ids: Iterable[int]) -> None:
        """Charge for those of the tasks found last that were published or claimed."""
        gone = set(ids)
        self._shares[queue].went(pick for pick in self._picks.pop(queue, ()) if pick.id in gone)
