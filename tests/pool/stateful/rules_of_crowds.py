"""What people, tasks and faults do to crowds before gates."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from sqlalchemy import text

from tasks_app.domain.flow_control.circuit_breaker import BreakerMode
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.flow_control.order_and_limits import drop_limit, set_limit, unblock
from tasks_app.pool.flow_control.queue_settings import pause, resume
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue
from tests.factory import ending, pending_task
from tests.pool.stateful.crowds import LOST_WORD, QUEUES, Crowds

ENABLE = text("UPDATE task_pending SET enabled = :enabled WHERE id = :id AND due_at <= :now")
picks = st.integers(0, 30)
tasks = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("a", "a", "b", "pay")),
        "queue": st.sampled_from(QUEUES),
        "priority": st.sampled_from((5, 5, 0)),
        "order_key": st.sampled_from((None, None, None, "o", "p")),
        "limit_key": st.sampled_from((None, "l", "l", "m", ["l", "m"], ["k", "l"], ["l", "k"])),
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
            self.child.pass_on(now=self.now)
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
