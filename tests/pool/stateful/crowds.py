"""Crowds before gates: what the actors do each second, and what must be true two seconds later.

Nothing is foretold here. After each two seconds in which leader and child had their turn, the rows
say whether a task waits that may run, and for which all of its gates have room."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, time, timedelta
from typing import Any, ClassVar
from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sqlalchemy import text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.queues import parse_window
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.flow_control.order_and_limits import drop_limit, set_limit, unblock
from tasks_app.pool.flow_control.queue_settings import pause, resume
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import renew
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.leader.dispatcher import Dispatcher
from tasks_app.runtime.leader.rescuer import Rescuer, Sweeper
from tests.factory import LEASE, claimer, ending, pending_task
from tests.runtime.memory import Memory

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
OPENS, CLOSES = time(12), time(12, 2)
QUEUES, NAMES = ("q1", "q2", "hours"), ("a", "b", "pay")
CLAIMER = claimer(*NAMES)
OF_NAME = Limit(GateKind.NAME, "b", 2)
RATE = Limit(GateKind.KEY, "m", None, 5, timedelta(seconds=10), 2)
LOST_WORD = timedelta(seconds=32)
"""After so long a gate is looked at without being told, and what that finds has run."""
CLEAN = "; ".join(
    f"DELETE FROM task_{table}"
    for table in (
        *("pending", "completed", "error", "attempt", "queue_pause", "gate", "limit"),
        *("breaker_held", "breaker", "queue_window", "queue", "worker", "pace"),
        *("lock_wait", "lock_part", "lock_holder", "lock"),
    )
)
ROWS = text("SELECT p.*, p.due_at <= :now AS is_due FROM task_pending p ORDER BY p.id")
BLOCKERS = "SELECT order_key, min(id) FROM task_error WHERE order_skips IS NOT TRUE GROUP BY 1"
PAUSED = "SELECT queue FROM task_queue_pause"
BROKEN = "SELECT dependency FROM task_breaker WHERE state <> 'closed'"
LIMITS = "SELECT kind, target, most FROM task_limit WHERE most IS NOT NULL"
BUCKET = "SELECT tokens, filled_at FROM task_gate WHERE gate = 'limit key m'"
MANY = 1_000


def gates_of(row: Any) -> list[tuple[str, str]]:
    """What limits may be of, and its locks; the row alone says so."""
    keys = [row.limit_key, *(row.more_limit_keys or ())]
    locks = (row.locks or {}).get("exclusive", ())
    known = [("queue", row.queue), ("name", row.name), *(("key", key) for key in keys)]
    return [*known, *(("lock", name) for name in locks)]


class Crowds(RuleBasedStateMachine):
    """A leader that scans, a child with as many hands as it needs, and the rows."""

    database: Database
    tally: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.now = self.excused_until = BEGIN
        self.runs: list[ClaimedTask] = []
        self.ids: list[int] = []
        settings = Settings(database_url="postgresql://nobody@nowhere/none")
        self.broker = Memory()
        self.leader, self.child = AdmissionControl(self.database), AdmissionControl(self.database)
        self.dispatcher = Dispatcher(settings, self.database, self.broker, clock=self.clock)
        self.rescuer, self.sweeper = Rescuer(settings, self.database), Sweeper(self.database)
        with self.database.begin() as connection:
            connection.exec_driver_sql(CLEAN)
            for limit in (*(Limit(GateKind.KEY, key, 1) for key in "lk"), OF_NAME, RATE):
                set_limit(connection, limit, now=self.now)
            circuit_breakers.synchronise(connection, {Breaker("bank"): ["pay"]}, list(NAMES))
            window = parse_window(f"{OPENS:%H:%M}-{CLOSES:%H:%M}")
            queue_settings.change_queue(connection, "hours", {"windows": (window,)})

    def clock(self) -> float:
        """Tell the time to who remembers something for a while."""
        return (self.now - BEGIN).total_seconds()

    def a_second_passes(self) -> None:
        """Everybody has a turn."""
        self.now += SECOND
        now = self.now
        with self.database.begin() as connection:
            values: dict[str, Any] = {"queues": QUEUES, "handlers": NAMES, "threads": 50}
            heartbeats.write_heartbeat(connection, owner="w1", node="n", now=now, **values)
            renew(connection, [run.fence for run in self.runs], LEASE, now=now)
            circuit_breakers.advance_due(connection, now=now)
        self.leader.wake_due(now=now)
        self.rescuer.run_once(now=now)
        self.sweeper.run_once(now=now)
        self.dispatcher.run_once(now=now)
        messages, self.broker.messages = self.broker.messages, []
        for message in messages:
            self.carry_out(list(message.ids))

    def carry_out(self, ids: list[int]) -> None:
        """Begin what is there to take; what runs alone has its turn later, as in a child."""
        claimed: list[ClaimedTask] | None = None
        while claimed is None or claimed:
            with self.database.single() as connection:
                claimed = claim(connection, ids, CLAIMER, uuid4(), now=self.now)
            self.child.hindered_until = 0.0  # the short way is tried each time
            claimed += self.child.claim(ids, CLAIMER, uuid4(), now=self.now)
            self.runs += claimed
            self.tally["began"] += len(claimed)
            if claimed:
                self.no_more_run_than_may({task.task_id for task in claimed})

    def no_more_run_than_may(self, began: set[int]) -> None:
        """Under no limit of those that just began more run than it allows."""
        running = [row for row in self.rows() if row.state == "RUNNING"]
        number = Counter(gate for row in running for gate in gates_of(row))
        for gate in {gate for row in running if row.id in began for gate in gates_of(row)}:
            assert number[gate] <= self.limits.get(gate, number[gate]), gate
        self.tally["locked"] += sum(row.id in began and row.locks is not None for row in running)
        self.tally["by several keys"] += sum(
            row.id in began and row.more_limit_keys is not None for row in running
        )

    def nobody_waits_who_may_run(self) -> None:
        """If each gate of a task has room, and it may run, it runs by now."""
        rows = self.rows()
        late = [r.id for r in rows if r.state == "PENDING" and r.is_due and self.barred(r)]
        assert not late, f"{late} expired, or were disabled, and are still there"
        self.tally["pending"] += sum(row.state == "PENDING" for row in rows)
        self.tally["parked"] += sum(row.parked is not None for row in rows)
        if self.now < self.excused_until:
            self.tally["excused"] += 1
            return
        waiting = [row for row in rows if self.may_run(row) and self.has_room(row, rows)]
        assert not waiting, [(row.id, row.queue, row.name, row.parked) for row in waiting]

    def rows(self) -> list[Any]:
        """Read what waits and runs, and what stands in its way."""
        with self.database.begin() as connection:
            read = connection.exec_driver_sql
            self.paused, self.broken = set(read(PAUSED).scalars()), set(read(BROKEN).scalars())
            self.limits = {(kind, target): most for kind, target, most in read(LIMITS)}
            self.limits |= {("lock", name): 1 for name in "xy"}
            self.bucket = read(BUCKET).one_or_none()
            self.blockers = dict(read(BLOCKERS).all())
            return list(connection.execute(ROWS, {"now": self.now}))

    def barred(self, row: Any) -> bool:
        return not row.enabled or (row.expires_at is not None and row.expires_at <= self.now)

    def may_run(self, row: Any) -> bool:
        """Whether nothing but gates is in its way."""
        stands_still = bool(self.paused & {row.queue, "*"}) or (
            row.queue == "hours" and not OPENS <= self.now.time() < CLOSES
        )
        ready = row.state == "PENDING" and row.is_due and not self.barred(row)
        return ready and not stands_still and not (self.broken and row.name == "pay")

    def has_room(self, row: Any, rows: list[Any]) -> bool:
        running = [other for other in rows if other.state == "RUNNING"]
        number = Counter(gate for other in running for gate in gates_of(other))
        if any(self.limits.get(gate, MANY) <= number[gate] for gate in gates_of(row)):
            return False
        if ("key", "m") in gates_of(row) and not self.had_tokens():
            return False
        return row.order_key is None or self.is_head(row, rows)

    def had_tokens(self) -> bool:
        """Whether its bucket held something for two seconds already."""
        if self.bucket is None or self.bucket.tokens is None:
            return True
        since_s = (self.now - self.bucket.filled_at).total_seconds()
        return bool(self.bucket.tokens + (since_s - 2) * RATE.per_second >= 1)

    def is_head(self, row: Any, rows: list[Any]) -> bool:
        line = [other for other in rows if other.order_key == row.order_key]
        if any(other.state == "RUNNING" for other in line):
            return False
        if self.blockers.get(row.order_key, row.id) < row.id:
            return False
        begun = [r for r in line if r.is_due or (r.attempt > 0 and not r.order_skips)]
        return next(r.id for r in begun if not self.barred(r)) == row.id


ENABLE = text("UPDATE task_pending SET enabled = :enabled WHERE id = :id AND due_at <= :now")
picks = st.integers(0, 30)
tasks = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("a", "a", "b", "pay")),
        "queue": st.sampled_from(QUEUES),
        "priority": st.sampled_from((5, 5, 0)),
        "order_key": st.sampled_from((None, None, None, "o", "p")),
        "limit_key": st.sampled_from((None, "l", "l", "m", ["l", "m"], ["k", "l"], ["l", "k"])),
        "locks": st.sampled_from((None, None, None, None, "x", "y")),
        "expires": st.sampled_from((None, None, None, None, 3, 40)),
        "delay": st.sampled_from((None, None, None, 3)),
        "skips": st.booleans(),
    }
)


class RulesOfCrowds(Crowds):
    """Each does one thing; then, or after several, two seconds pass."""

    @initialize(some=st.lists(tasks, min_size=8, max_size=16))
    def a_day_begins(self, some: list[dict]) -> None:
        self.create(some)
        self.a_second_passes()

    @rule(some=st.lists(tasks, min_size=1, max_size=5))
    def create(self, some: list[dict]) -> None:
        with self.database.begin() as connection:
            for wish in some:
                options = dict(wish)
                name, skips, expires = (options.pop(k) for k in ("name", "skips", "expires"))
                if skips and options["order_key"]:
                    options["order_policy"] = "skips"
                if expires:
                    options["expires_at"] = self.now + timedelta(seconds=expires)
                self.ids.append(int(pending_task(connection, name, now=self.now, **options)))

    @rule()
    def two_seconds_pass(self) -> None:
        """And it is looked who waits."""
        self.a_second_passes()
        self.a_second_passes()
        self.nobody_waits_who_may_run()

    @rule()
    def two_more_seconds_pass(self) -> None:
        """A rule of its own, so that it comes as often as what people do."""
        self.two_seconds_pass()

    @rule(pick=picks, says=st.booleans())
    def a_run_ends_and_two_seconds_pass(self, pick: int, *, says: bool) -> None:
        self.a_run_ends(pick, Event.SUCCEED, 0, says=says or pick > 3)
        self.two_seconds_pass()

    @rule(queue=st.sampled_from(QUEUES), resumes=st.booleans())
    def a_queue_stops_and_all_runs_end(self, queue: str, *, resumes: bool) -> None:
        """Those that it held in front of others are woken while it stands still."""
        self.pause_or_resume("*", stops=False)
        self.two_seconds_pass()
        self.pause_or_resume(queue, stops=True)
        while self.runs:
            self.a_run_ends(0, Event.SUCCEED, 0, says=True)
        self.two_seconds_pass()
        if resumes:
            self.pause_or_resume(queue, stops=False)
            self.two_seconds_pass()

    @rule(span=st.sampled_from((5, 35, 90, 86_400)))
    def nobody_has_a_turn_for_long(self, span: int) -> None:
        self.now += timedelta(seconds=span)

    @rule(
        pick=picks,
        event=st.sampled_from((Event.SUCCEED, Event.SUCCEED, Event.RETRY, Event.FAIL)),
        wait=st.sampled_from((0, 5, 60)),
        says=st.sampled_from((True, True, True, False)),
    )
    def a_run_ends(self, pick: int, event: Event, wait: int, *, says: bool) -> None:
        run = self.taken(pick)
        if run is None:
            return
        settlement = ending(run, event, wait=timedelta(seconds=wait))
        with self.database.begin() as connection:
            settle_one(connection, settlement, now=self.now)
        if says:
            self.child.ended([run.fence])
            self.child.wake_after_runs(now=self.now)
        else:  # its child is killed before it looks who waits
            self.excused_until = self.now + LOST_WORD

    @rule(pick=picks)
    def a_child_is_killed(self, pick: int) -> None:
        """Nobody renews what it ran."""
        self.taken(pick)

    def taken(self, pick: int) -> ClaimedTask | None:
        return self.runs.pop(pick % len(self.runs)) if self.runs else None

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        with self.database.begin() as connection:
            cancel(connection, self.ids[pick % len(self.ids)], now=self.now)

    @rule(pick=picks)
    def requeue(self, pick: int) -> None:
        with self.database.begin() as connection:
            requeue(connection, self.ids[pick % len(self.ids)], now=self.now)

    @rule(pick=picks)
    def unblock(self, pick: int) -> None:
        with self.database.begin() as connection:
            unblock(connection, self.ids[pick % len(self.ids)], now=self.now)

    @rule(pick=picks, enabled=st.booleans())
    def enable(self, pick: int, *, enabled: bool) -> None:
        with self.database.begin() as connection:
            values = {"id": self.ids[pick % len(self.ids)], "enabled": enabled, "now": self.now}
            connection.execute(ENABLE, values)

    @rule(queue=st.sampled_from((*QUEUES, "*")), stops=st.booleans())
    def pause_or_resume(self, queue: str, *, stops: bool) -> None:
        with self.database.begin() as connection:
            (pause if stops else resume)(connection, queue, now=self.now)

    @rule(mode=st.sampled_from((BreakerMode.OPEN, BreakerMode.CLOSED)))
    def a_breaker_changes(self, mode: BreakerMode) -> None:
        with self.database.begin() as connection:
            circuit_breakers.override(connection, "bank", mode, now=self.now)

    @rule(
        gate=st.sampled_from(
            (*((GateKind.KEY, key) for key in "lk"), (GateKind.NAME, "b"), (GateKind.QUEUE, "q2"))
        ),
        most=st.sampled_from((None, 0, 1, 2)),
    )
    def a_limit_changes(self, gate: tuple[GateKind, str], most: int | None) -> None:
        with self.database.begin() as connection:
            if most is None:
                drop_limit(connection, *gate, now=self.now)
            else:
                set_limit(connection, Limit(*gate, most), now=self.now)

    @rule(pick=picks)
    def a_message_comes_twice(self, pick: int) -> None:
        self.carry_out(self.ids[pick % len(self.ids) :][:3])
