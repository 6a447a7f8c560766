"""Writes outcomes to the database, many at once, and reports them to counters and hooks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from random import shuffle

import psycopg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tasks_app.domain.groups import StartedTask
from tasks_app.domain.handlers.settlement import BAD_OUTCOME, VANISHED
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.error_text import quiet_logger, storable_text
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.row_by_row import record_refusals
from tasks_app.pool.runs.settle import settle_group, settle_one, still_held
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import Remedy, is_crowded, patience_s, remedy_for, sqlstate
from tasks_app.runtime.db.transaction import give_back
from tasks_app.runtime.execution.in_flight import InFlight
from tasks_app.runtime.handler_db.driver_internals import LATE_WRITES, SHARED_SESSIONS
from tasks_app.runtime.handler_db.ends import NotTriedError, OutcomeRefusedError, RunEnd, in_time
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.lending import driver_of
from tasks_app.runtime.handler_db.statements import PROVEN, Write
from tasks_app.runtime.hints import HINTS, hints_of_returned, hints_of_started
from tasks_app.runtime.hooks import HOOKS, Notice, of_return, of_settlement
from tasks_app.runtime.statistics import RUN_COUNTS, TASK_COUNTS
from tasks_app.runtime.tracing.run_logs import ATTEMPTS

log = quiet_logger(__name__)
LAST_PATIENCE_S = 10.0
"""How long a child that stops waits for a database that is away; then leases end, and a rescue
follows."""
REFUSED_WAIT_S = 5.0  # how long a child begins nothing new while its outcomes are refused
LOCKED_WAIT_S = 0.5  # until an outcome is tried again whose row another transaction holds
MOST = 1_000  # how many outcomes without writes go in one statement
MOST_COMMITS, MOST_WRITES = 32, 64
"""How many commits share a round trip, and how many statements of handlers: more would save
nothing, and hold up whoever waits for them. A run with more statements commits by itself."""
LATE_PATIENCE_S = 5.0  # how long such a round trip may take: renewals wait meanwhile
LATE_S = 1.0
"""Then no other is begun: of many that are stopped one after the other, renewals would wait."""


class Settler:
    """Writes what has ended. Used by main thread and housekeeper, one at a time."""

    def __init__(self, database: Database, inflight: InFlight, lease: timedelta) -> None:
        self._database = database
        self._inflight = inflight
        self._late_patience_s = min(LATE_PATIENCE_S, lease.total_seconds() / 6)
        self._turn = threading.Lock()
        self._notices: list[Notice] = []  # of whose turn it is
        self._most = MOST
        self._spared_until = 0.0

    def takes(self, settlement: Settlement) -> bool:
        """Whether it may be committed here with its writes; an exclusive run commits by itself."""
        task = settlement.task
        return (
            SHARED_SESSIONS.works
            and LATE_WRITES.works
            and self._database.prepares
            and len(settlement.writes) <= MOST_WRITES
            and not (task is None or task.runs_alone)
        )

    def flush_unless_busy(self) -> None:
        """Do :meth:`flush`, if no other thread does."""
        if not self._turn.locked():
            self.flush()

    def flush(self) -> bool:
        """Write all finished outcomes, without a wait; True: some are left to try at once.

        A row that another transaction holds (an open cancel) stays and is tried again soon.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer, or refused; what is not written
                stays in flight.
        """
        notices: list[Notice] = []
        try:
            with self._turn:
                self._notices = notices
                try:
                    more = self._write_all(self._inflight.finished())
                except DBAPIError:
                    self._spared_until = time.monotonic() + patience_s()
                    raise
                finally:
                    self._inflight.restart_clock(LOCKED_WAIT_S)
                self._spared_until = 0.0
                return more
        finally:  # hooks are called without the lock
            HOOKS.tell(notices)

    def flush_quietly(self) -> bool:
        """Do :meth:`flush` if the database answers; else what is finished stays in flight.

        A database that has just refused is not asked again before each of many tasks.
        """
        if time.monotonic() < self._spared_until:
            return False
        try:
            return self.flush()
        except Exception as error:  # an exception here would leave claims behind
            log.warning("outcomes wait for the database: %s", type(error).__name__)
            return False

    def flush_until_answered(self) -> bool:
        """Do :meth:`flush` until the database has answered for all, however long it is away.

        A child that stops gives up after a while; so does one whose database answers, but refuses.
        """
        began = time.monotonic()
        while True:
            try:
                return self.flush()
            except Exception as error:
                log.warning("outcomes wait for the database: %s", type(error).__name__)
                waited = time.monotonic() - began > REFUSED_WAIT_S
                refused = remedy_for(error) is not Remedy.SPARE
                if self._gives_up(began) or (waited and refused):
                    return False
                time.sleep(patience_s())

    def settle_until_answered(self, settlement: Settlement) -> None:
        """Write one outcome now, and wait for its row and for the answer.

        The fence judges a repeated try, so asking again is safe. A child that stops gives up after
        a while, and then it is the lease that is lost.
        """
        began, started = time.monotonic(), list[StartedTask]()
        left: Settlement | None = settlement
        while left is not None:
            try:
                with self._database.single() as connection:
                    state = settle_one(connection, left, started=started)
            except SQLAlchemyError as error:
                if isinstance(error, DBAPIError) and remedy_for(error) is Remedy.REPLACE:
                    left = self._in_its_place(left, error)
                    continue
                log.warning("a settle was not answered, trying again: %s", type(error).__name__)
                if self._gives_up(began):
                    return
                time.sleep(patience_s())
            else:
                HINTS.offer(hints_of_started(started))
                HINTS.offer(hints_of_returned([left] if state is State.PENDING else []))
                if state is not None:
                    report_settled([left], {left.fence.task_id: state})
                return

    def _gives_up(self, began: float) -> bool:
        return self._inflight.stopping.is_set() and time.monotonic() - began > LAST_PATIENCE_S

    def _write_all(self, settlements: list[Settlement]) -> bool:
        """Write outcomes without writes, then the others, even if the first were refused."""
        late = [s for s in settlements if s.writes]
        try:
            self._write_groups([s for s in settlements if not s.writes] if late else settlements)
        except DBAPIError as refusal:
            if remedy_for(refusal) is not Remedy.SPARE:
                self._commit_late(late)
            raise
        return self._commit_late(late)

    def _write_groups(self, settlements: list[Settlement]) -> None:
        """Write all at once; after one was refused, in smaller groups that are mixed anew.

        So an outcome that is refused stops no other for long.
        """
        if len(settlements) > self._most:
            shuffle(settlements)
        while settlements:
            group, settlements = settlements[: self._most], settlements[self._most :]
            try:
                self._write(group)
            except DBAPIError:
                self._most = max(1, len(group) // 2)
                raise
            self._most = min(MOST, 2 * self._most)

    def _write(self, settlements: list[Settlement]) -> None:
        """Write a group with one statement; what the database refuses splits it."""
        started: list[StartedTask] = []
        try:
            with self._database.single() as connection:
                done = settle_group(connection, settlements, started=started)
                left = [s.fence for s in settlements if s.fence.task_id not in done]
                held = still_held(connection, left) if left else set()
        except DBAPIError as error:
            if remedy_for(error) is not Remedy.REPLACE:
                raise
            if len(settlements) > 1:  # one member's data stops a group
                for settlement in settlements:
                    self._write([settlement])
            elif (failure := self._in_its_place(settlements[0], error)) is not None:
                self._write([failure])
            else:  # after its lease the rescuer takes it
                self._inflight.drop(settlements[0].fence)
            return
        HINTS.offer([*hints_of_started(started), *hints_of_returned(settlements)])
        self._answered([s for s in settlements if s.fence.task_id not in held], done)

    def _in_its_place(self, refused: Settlement, error: DBAPIError) -> Settlement | None:
        """Return the failure that says what was refused; None: not even a failure fits."""
        if refused.event is Event.FAIL:
            with self._database.single() as connection:
                record_refusals(connection, "settling of tasks", [refused.fence.task_id], error)
            return None
        sentence = f"The database refused it with SQLSTATE {sqlstate(error)}."
        cause = Cause(BAD_OUTCOME, storable_text(sentence, 200))
        return refused._replace(event=Event.FAIL, result=None, cause=cause)

    def _answered(self, settlements: Sequence[Settlement], states: Mapping[int, State]) -> None:
        """Note what the database answered for these; one without a state has lost its fence."""
        count_settled(settlements, states)
        for lost in (s for s in settlements if s.fence.task_id not in states):
            report_lost(lost)
        self._inflight.drop(*[s.fence for s in settlements])
        self._notices += notices_of(settlements, states)

    def _commit_late(self, settlements: Sequence[Settlement]) -> bool:
        """Commit each with its writes; True: some are left to try at once.

        What fails is split off, to be committed by a run of its own. So is one of each text that
        is not proven to be a write: it is to be sent alone before others are.
        """
        left, ends = deque(self._proven(settlements)), time.monotonic() + LATE_S
        more = len(left) < len(settlements)
        while left:
            if time.monotonic() >= ends:
                return True
            group = self._first(left)
            try:
                ended = self._commit_each(group)
            except DBAPIError as refusal:
                if not is_crowded(refusal):
                    raise
                for settlement in (*group, *left):  # there may be a connection for handlers
                    self._inflight.split_off(settlement)
                return more
            if ended is None:
                self._unanswered(group)
                return True
            left.extendleft(reversed(self._read_answers(group, ended)))
        return more

    def _proven(self, settlements: Sequence[Settlement]) -> Iterator[Settlement]:
        sent_alone = set[str]()
        for settlement in settlements:
            texts = {query for query, _ in settlement.writes if query not in PROVEN}
            if not texts:
                yield settlement
            elif sent_alone.isdisjoint(texts):
                sent_alone |= texts
                self._inflight.split_off(settlement)

    def _first(self, left: deque[Settlement]) -> list[Settlement]:
        """Take as many as share a round trip; one that was not answered has it alone."""
        group = [left.popleft()]
        statements = len(group[0].writes)
        while (
            left
            and len(group) < MOST_COMMITS
            and statements + len(left[0].writes) <= MOST_WRITES
            and not (group[0].unsure or left[0].unsure)
        ):
            statements += len(left[0].writes)
            group.append(left.popleft())
        return group

    def _commit_each(self, group: Sequence[Settlement]) -> list[Exception | None] | None:
        """Return why each did not commit, None for those that did; or None: nothing is known."""
        started: list[StartedTask] = []
        ends = [RunEnd([s], [Write(*w) for w in s.writes], started) for s in group]
        connection = self._database.brief_engine.connect()
        driver: HandlerConnection = driver_of(connection)
        steps = in_time(driver.end_each(ends), self._late_patience_s)
        try:
            with driver.lock:
                ended = driver.as_executor(lambda: driver.wait(steps))
        except psycopg.Error as broken:  # it is lost, or a statement of ours could not be prepared
            driver.is_spoiled = True
            behind = (NotTriedError() for _ in group[1:])
            return None if driver.closed else [broken, *behind]
        finally:
            give_back(connection.close, connection.invalidate)
        HINTS.offer(hints_of_started(started))
        return ended

    def _read_answers(
        self, group: Sequence[Settlement], ended: Sequence[Exception | None]
    ) -> list[Settlement]:
        """Return those that were not tried."""
        again, answered, states = list[Settlement](), list[Settlement](), dict[int, State]()
        for settlement, error in zip(group, ended, strict=True):
            if isinstance(error, NotTriedError):
                again.append(settlement)
            elif error is None or isinstance(error, OutcomeRefusedError):
                answered.append(settlement)
                if error is None:
                    states[settlement.fence.task_id] = State.SUCCEEDED
            else:
                self._inflight.split_off(settlement)
        self._answered(answered, states)
        return again

    def _unanswered(self, group: Sequence[Settlement]) -> None:
        """Try each once more, alone, as one may have ended the connection; then split it off.

        If its commit stands, its fence is gone.
        """
        for settlement in group:
            if settlement.unsure:
                self._inflight.split_off(settlement)
            else:
                self._inflight.amend(settlement._replace(unsure=True))


def count_stale(task: ClaimedTask) -> None:
    TASK_COUNTS.happened(CountedOutcome.STALE, name=task.name, queue=task.queue)


def report_lost(settlement: Settlement) -> None:
    if settlement.unsure:
        log.info("task %s: its commit stands, or its lease was lost", settlement.fence.task_id)
        return
    task = settlement.task
    log.warning(
        "task %s%s: the lease was lost, its outcome is not kept. Nothing to do: another attempt "
        "runs it, and what this one wrote is rolled back.",
        settlement.fence.task_id,
        f" ({task.name})" if task else "",
    )
    if task is not None:
        count_stale(task)


def report_settled(settlements: Sequence[Settlement], states: Mapping[int, State]) -> None:
    """Count and tell what was settled. Hold no lock; nothing is raised."""
    count_settled(settlements, states)
    HOOKS.tell(notices_of(settlements, states))


def count_settled(settlements: Sequence[Settlement], states: Mapping[int, State]) -> None:
    """Count what was settled: for the log, for a waiting parent, and by name and queue."""
    ATTEMPTS.succeeded(list(states.values()).count(State.SUCCEEDED))
    RUN_COUNTS.add(states.values())
    TASK_COUNTS.settled(settlements, states)


def notices_of(
    settlements: Iterable[Settlement], states: Mapping[int, State]
) -> tuple[Notice, ...]:
    """Return what there is to tell of those that were settled; of successes only if wanted."""
    wanted = HOOKS.wanted
    return tuple(
        of_settlement(s, s.task, states[s.fence.task_id])
        for s in settlements
        if (wanted or s.event is not Event.SUCCEED)
        and s.task is not None
        and s.fence.task_id in states
    )


def report_returned(
    tasks: Sequence[ClaimedTask],
    states: Mapping[int, State],
    event: Event,
    wait: timedelta = timedelta(0),
    why: str = VANISHED,
) -> None:
    TASK_COUNTS.returned(tasks, states, event)
    HOOKS.tell(
        of_return(task, states[task.task_id], event, wait, why)
        for task in tasks
        if task.task_id in states
    )
