"""Admission control: which tasks may be claimed now, by gates and by shares of fair queues."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import starmap
from math import ceil
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.encryption import MissingKeyError, SealBrokenError, token_in
from tasks_app.domain.errors import InvalidLockError, UnreadableTaskError
from tasks_app.domain.flow_control.admission import (
    Admission,
    FairQueueKey,
    PickedTask,
    Shares,
    admit,
    capacity_of,
    tokens_of,
)
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limits
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.locks import OF_HANDLER, keep_in_order, named_locks
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.run import ClaimedTask, Fence
from tasks_app.pool.connection.row_by_row import is_of_one_row
from tasks_app.pool.dispatch.scan import DueRows
from tasks_app.pool.flow_control import order_and_limits as rows
from tasks_app.pool.flow_control.capacity import (
    capacities_of,
    insert_gates,
    lock_buckets,
    spend_tokens,
)
from tasks_app.pool.flow_control.fair_queues import Head, fair_lines, fair_queues, first_of_lines
from tasks_app.pool.flow_control.lock_line import wake_lock_lines
from tasks_app.pool.flow_control.order_and_limits import WaitingTasks, find_clear_tasks, lock_gates
from tasks_app.pool.flow_control.waiting_list import (
    Rooms,
    gates_with_waiters,
    next_gate_check_in_s,
    overdue_gates,
    park_at_gates,
    wake_tasks,
)
from tasks_app.pool.locks.acquire import notify_next
from tasks_app.pool.locks.declared import (
    free_ended,
    grant_declared,
    lock_declared,
    lock_rooms,
    name_locks,
    resources_of,
    unnamed_tasks,
)
from tasks_app.pool.runs.claim import Claimer, Claims, claim
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.encryption.encryption import PAYLOAD, Encryption
from tasks_app.runtime.handlers.context import SPENT
from tasks_app.runtime.hint_sender import Hint
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.large_values import LargeStoreError, LargeValues

Now: TypeAlias = datetime | None
Ended: TypeAlias = Mapping[Gate, int] | None
MOST_CHECKED = 500  # gates that one call locks together
LINES_AT_ONCE = 10  # lines of locks that are read in a transaction: claims wait for it
HINDERED_S = 1.0  # how long claims skip the short way after it found no gate clear


class AdmissionVerdict(NamedTuple):
    """Which tasks may run, which may not, and the state of their gates."""

    admission: Admission
    rooms: Rooms
    limits: Limits


class WakeResult(NamedTuple):
    next_s: float | None  # seconds until the next check; None: no task is held
    woken: int = 0


class LockNames:
    """Names the locks of tasks, from what their handlers declare and the tasks' payloads."""

    # At the claim: who creates a task need not know its handler, and here the keys of encrypted
    # payloads are known.

    def __init__(
        self, database: Database, settings: Settings, specs: Iterable[HandlerSpec]
    ) -> None:
        self._database = database
        self._locks = {spec.name: spec.locks for spec in specs if spec.locks is not None}
        if self._locks:
            self._encryption, self._large = Encryption(settings), LargeValues(settings)

    def write(self, ids: Sequence[int]) -> None:
        """Write them into the rows that have none yet."""
        if not self._locks:
            return
        with self._database.single() as connection:
            rows = unnamed_tasks(connection, ids, self._locks)
        named = [(row.id, locks, row.version) for row in rows if (locks := self._of(row))]
        if named:
            with self._database.single() as connection:
                name_locks(connection, named)

    def _of(self, row: Any) -> dict[str, Any] | None:
        """Return none of a payload that cannot be read: its run says why. None: not now."""
        try:
            text = self._large.payload(self._database.begin, row.id, row.payload)
            if token_in(text) is not None:
                text = self._encryption.opened(text, PAYLOAD, row.name)
            return named_locks(self._locks[row.name], decode(text, "payload"))
        except LargeStoreError:
            return None
        except (InvalidLockError, UnreadableTaskError, MissingKeyError, SealBrokenError):
            return {OF_HANDLER: True}


class AdmissionControl:
    """Of one process; all that it decides by is in the database.

    On a DBAPIError, the next check wakes what waits.
    """

    def __init__(self, database: Database, names: LockNames | None = None) -> None:
        """``names``: of the handlers of those who claim."""
        self._database = database
        self._names = names
        self._mutex = threading.Lock()
        self._turn = threading.Lock()
        # The gates that each run of this child has passed, by id and attempt.
        self._behind: dict[tuple[int, int], tuple[Gate, ...]] = {}
        self._ended: Counter[Gate] = Counter()
        self._weights: dict[tuple[int, int], int] = {}  # of those runs that have one
        self._owed: Counter[Gate] = Counter()  # tokens that ended runs took beyond their weights
        self._fruitless = 0
        self.hindered_until = 0.0  # claims skip the short way until then, by time.monotonic

    def claim(
        self,
        ids: Sequence[int],
        claimer: Claimer,
        token: UUID,
        most: int | None = None,
        *,
        now: datetime | None = None,
    ) -> list[ClaimedTask]:
        """Claim those of ``ids`` that pass, and hold the others."""
        began = time.monotonic()
        if began >= self.hindered_until:  # the short way: claim what surely passes, hold nothing
            with self._database.begin() as connection:
                gates_of = lock_gates(connection, ids)
                clear = [*gates_of][:most]
                claimed = []
                if clear:
                    claimed = claim(connection, clear, claimer, token, Claims.CLEAR, now=now)
            self._note(claimed, gates_of)
            self._fruitless = 0 if claimed else self._fruitless + 1
            if claimed:
                return claimed
        if self._names is not None:
            self._names.write(ids)
        with self._database.single() as connection:
            found = rows.waiting(connection, ids, claimer.names, most, now=now)
            insert_gates(connection, found.gates)
        if not found.waiting:
            return []
        if self._fruitless > 1:  # one is usual: a message left ids behind
            self.hindered_until = began + HINDERED_S
        with self._database.begin() as connection:
            claimed, admission = let_pass(connection, found, claimer, token, most, now=now)
        of = {task.task_id: task for task in found.waiting}
        self._note(claimed, {task_id: task.gates for task_id, task in of.items()})
        with self._mutex:
            self._weights |= {
                task.fence[:2]: weight for task in claimed if (weight := of[task.task_id].weight)
            }
        self._wake(admission.behind, now)
        return claimed

    def _note(self, claimed: Iterable[ClaimedTask], of: Mapping[int, tuple[Gate, ...]]) -> None:
        with self._mutex:
            self._behind |= {task.fence[:2]: of[task.task_id] for task in claimed}

    def judge(
        self, connection: Connection, ids: Sequence[int], *, now: datetime | None = None
    ) -> AdmissionVerdict:
        """Return which would pass now, without a lock: for callers that only publish ids."""
        clear = find_clear_tasks(connection, ids, now=now)
        found = rows.waiting(connection, [i for i in ids if i not in clear], now=now)
        rooms: Rooms = {
            **capacities_of(connection, found.gates, found.limits, now=now),
            **lock_rooms(connection, found.waiting, now=now),
        }
        admission = admit(found.waiting, rooms)
        keep_in_order(admission, rooms, admission.ids)
        admission.ids += clear
        return AdmissionVerdict(admission, rooms, found.limits)

    def hold(self, verdicts: Iterable[AdmissionVerdict], *, now: datetime | None = None) -> None:
        for admission, rooms, limits in verdicts:
            if admission.held:
                with self._database.begin() as connection:
                    park_at_gates(connection, admission.held, rooms, limits, now=now)
                self._wake(admission.behind, now)

    def ended(self, fences: Collection[Fence]) -> bool:
        """Note that runs are over, however they ended; return whether tasks may wait for that."""
        if not self._behind and not SPENT:
            return False
        with self._mutex:
            gates = [self._behind.pop(fence[:2], ()) for fence in fences]
            self._ended.update(gate for some in gates for gate in some)
            if self._weights or SPENT:
                for fence, some in zip(fences, gates, strict=True):
                    self._note_spent(fence[:2], some)
        return bool(self._ended)

    def _note_spent(self, run: tuple[int, int], gates: Iterable[Gate]) -> None:
        weight, spent = self._weights.pop(run, 1), SPENT.pop(run, None)
        if spent is not None:
            for gate in gates:
                if gate.kind is GateKind.KEY:
                    self._owed[gate] += spent - weight

    def wake_after_runs(self, *, now: datetime | None = None) -> None:
        """Wake the tasks that wait behind runs which are over; return when they are awake."""
        with self._turn:
            if not self._ended:
                return
            with self._mutex:
                ended, self._ended = self._ended, Counter()
                owed, self._owed = self._owed, Counter()
            if owed:
                self._take(owed, now)
                self._wake([gate for gate, tokens in owed.items() if tokens < 0], now)
            self._wake(ended, now, ended)

    def _take(self, owed: Counter[Gate], now: Now) -> None:
        with self._database.begin() as connection:
            buckets = lock_buckets(connection, owed, now=now)
            limits = rows.read_limits(connection)
            rooms = {g: capacity_of(g, limits.of(g), 0, None, buckets[g]) for g in buckets}
            spend_tokens(connection, owed, rooms)

    def gone(self, ids: Collection[int], *, now: datetime | None = None) -> None:
        """Wake the tasks that wait behind others' tasks which were rescued, reaped or swept."""
        if ids:
            with self._database.single() as connection:
                gates = rows.gates_of_tasks(connection, ids, now=now)
            self._wake(gates, now)

    def wake_due(self, *, now: datetime | None = None) -> WakeResult:
        """Wake tasks behind the gates whose time has come."""
        with self._database.single() as connection:
            next_s = next_gate_check_in_s(connection, now=now)
            if next_s is None or next_s > 0:
                return WakeResult(next_s)
            late = overdue_gates(connection, MOST_CHECKED, now=now)
        woken = self._wake_behind(late, now)
        with self._database.single() as connection:
            return WakeResult(next_gate_check_in_s(connection, now=now), woken)

    def _wake(self, gates: Iterable[Gate], now: Now, ended: Ended = None) -> None:
        """Wake the tasks for which there is room; most often none waits."""
        if not gates:
            return
        with self._database.single() as connection:
            if resources := resources_of(gates):
                free_ended(connection, resources)
                notify_next(connection, resources)
            waited = gates_with_waiters(connection, list(gates))
        self._wake_behind(waited, now, ended)

    def _wake_behind(self, gates: Sequence[Gate], now: Now, ended: Ended = None) -> int:
        lines = [gate for gate in gates if gate.kind is GateKind.LOCK]
        others = [gate for gate in gates if gate.kind is not GateKind.LOCK]
        parts = [lines[at : at + LINES_AT_ONCE] for at in range(0, len(lines), LINES_AT_ONCE)]
        number = 0
        for some in [others, *parts] if others else parts:
            try:
                woken = self._woken(some, now, ended)
            except DBAPIError as error:
                if not is_of_one_row(error):
                    raise
                woken = self._woken(some, now, ended, careful=True)
            HINTS.offer(starmap(Hint, woken))
            number += len(woken)
        return number

    def _woken(
        self, gates: Sequence[Gate], now: Now, ended: Ended, *, careful: bool = False
    ) -> list[tuple[str, int]]:
        with self._database.begin() as connection:
            buckets = lock_buckets(connection, gates, now=now)
            limits = rows.read_limits(connection)  # after the lock: a change of limits wakes, too
            lines = [gate for gate in buckets if gate.kind is GateKind.LOCK]
            woken = wake_lock_lines(connection, lines, now=now) if lines else []
            gates = [gate for gate in buckets if gate.kind is not GateKind.LOCK]
            if ended is not None:
                gates = [gate for gate in gates if limits.have_places_of(gate)]
            rooms = capacities_of(connection, gates, limits, buckets, now=now)
            return woken + wake_tasks(connection, rooms, limits, ended, careful=careful, now=now)


def let_pass(
    connection: Connection,
    found: WaitingTasks,
    claimer: Claimer,
    token: UUID,
    most: int | None = None,
    *,
    now: datetime | None = None,
) -> tuple[list[ClaimedTask], Admission]:
    """Claim what passes, under the locks of its gates; return that, and which gates hold the rest.

    After the COMMIT, check for room again: a run that made some may have checked before it. Check
    all gates of the tasks that are held: a task woken by another gate leaves its place at each.
    """
    of = {task.task_id: task for task in found.waiting}
    buckets = lock_buckets(connection, found.gates, now=now)
    waiting = lock_declared(connection, found.waiting)
    lines = lock_rooms(connection, waiting, takes_over=True, now=now)
    counted = capacities_of(connection, list(buckets), found.limits, buckets, now=now)
    rooms: Rooms = {**counted, **lines}
    admission = admit(waiting, rooms)
    claimed = claim(connection, admission.ids[:most], claimer, token, Claims.ADMITTED, now=now)
    running = {task.task_id for task in claimed}
    keep_in_order(admission, rooms, [i for i in admission.ids if i not in running])
    started: Counter[Gate] = Counter()
    for each in claimed:
        _, gates, _, weight = of[each.task_id]
        started.update({gate: tokens_of(gate, weight) for gate in gates})
    spend_tokens(connection, started, counted)
    grant_declared(connection, claimed, lines, now=now)
    park_at_gates(connection, admission.held, rooms, found.limits, now=now)
    return claimed, admission


GENEROUS = 2  # each key's tasks are read to twice its share: other keys may have fewer than theirs


class Fairness:
    """The shares that each key of fair queues had, as long as the process lives."""

    def __init__(self) -> None:
        self._shares: dict[str, Shares] = {}
        self._after: dict[str, str] = {}
        self._picks: dict[str, list[PickedTask]] = {}

    def among(self, connection: Connection, queues: Collection[str]) -> set[str]:
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
        """Return up to ``most`` due rows by shares, which :meth:`went` charges; None: no rows."""
        shares = self._shares[queue]
        found, self._after[queue] = fair_lines(connection, queue, self._after.get(queue, ""))
        keys = {line.key for line in found}
        wanted = {
            line: min(most, 2 + ceil(GENEROUS * most * shares.share(line.key, keys)))
            for line in found
        }

        def read(some: Mapping[FairQueueKey, int]) -> dict[FairQueueKey, list[Head]]:
            return first_of_lines(connection, queue, some, out, names=names, lock=lock, now=now)

        waiting = read(wanted)
        if sum(map(len, waiting.values())) < most:  # the others get what these leave
            full = {
                line: most for line, some in waiting.items() if wanted[line] == len(some) < most
            }
            waiting |= read(full) if full else {}
        by_id = {head.id: head for some in waiting.values() for head in some}
        ids = {line: [head.id for head in some] for line, some in waiting.items()}
        self._picks[queue] = picks = shares.order(ids, most)
        if not picks:
            return None
        chosen = [by_id[pick.id] for pick in picks]
        return DueRows(
            queue,
            [head.id for head in chosen],
            [head.name for head in chosen],
            [pick.line.priority for pick in picks],
            [head.scan_at for head in chosen],
            frozenset(head.id for head in chosen if head.barred),
            frozenset(head.id for head in chosen if head.gated),
            frozenset(head.id for head in chosen if head.held),
        )

    def went(self, queue: str, ids: Iterable[int]) -> None:
        """Charge the shares for those of the last due rows that were published or claimed."""
        gone = set(ids)
        self._shares[queue].went(pick for pick in self._picks.pop(queue, ()) if pick.id in gone)
