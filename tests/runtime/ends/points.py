"""How a run ends: where it fails, and what becomes of it, whatever its handler writes with."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pytest
from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, text
from sqlalchemy.orm import registry

from tasks_app import Group, NewTask, create_group, create_tasks
from tasks_app.pool import task_groups as groups
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.pool.tasks import browse
from tests.clock import until
from tests.factory import LEASE, some
from tests.runtime.bench import EFFECT, NOW_DUE, Bench, known_as_writes, warm
from tests.runtime.handler_db.twins import in_the_loop

INSERT = "INSERT INTO effect (task_id, note) VALUES (%s, %s)"
LATE = "SELECT 1 / %s"
COMMENT = f"/*{'x' * 10_001}*/"
RETAKEN = "UPDATE task_pending SET lease_token = gen_random_uuid() WHERE id = :id"
KILL = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE query LIKE '%task no. ' || :id || '!%' AND pid <> pg_backend_pid()
"""
SEEN = "SELECT count(*) FROM effect WHERE task_id = :id"
TRIGGERS = """
    CREATE SEQUENCE tries;
    CREATE FUNCTION heed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        CASE NEW.note
        WHEN 'wrong' THEN RAISE 'a wrong row' USING ERRCODE = 'check_violation';
        WHEN 'theirs' THEN PERFORM task_fence_lost(0);
        WHEN 'conflict' THEN
            IF (SELECT last_value FROM tries) <> NEW.task_id THEN
                PERFORM setval('tries', NEW.task_id);
                RAISE 'the first time' USING ERRCODE = '40001';
            END IF;
        ELSE NULL; END CASE;
        RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER heeds AFTER INSERT ON effect
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.note <> '') EXECUTE FUNCTION heed();
    CREATE FUNCTION hides() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DECLARE c
        CURSOR WITH HOLD FOR SELECT 1 / (relpages - relpages) FROM pg_class'; END $$
"""


class Effect:
    """A row of ``effect``, for the ORM."""

    def __init__(self, task_id: int, note: str) -> None:
        self.task_id, self.note = task_id, note


_COLUMNS = [Column("task_id", BigInteger, primary_key=True), Column("note", String)]
registry().map_imperatively(Effect, Table("effect", MetaData(), *_COLUMNS))


class Fate(NamedTuple):
    """What is to be seen of a run."""

    state: str
    failures: int = 0
    crashes: int = 0
    rows: int = 0
    """Effects that stand."""
    calls: int = 1
    """Of its handler."""


DONE = Fate("SUCCEEDED", rows=1)
CHARGED = Fate("PENDING", failures=1)
STALE = Fate("RUNNING")
LOST = Fate("PENDING", crashes=1)
FOR_GOOD = Fate("FAILED", failures=1, rows=1)


class Point(NamedTuple):
    """What happens in the first attempt, in this order; the second one finds nothing of it."""

    fate: Fate
    error: str = ""
    """What its line in the history says."""
    note: str = ""
    """Of the row that it writes: triggers heed it when it ends."""
    says: str = ""
    """A statement, by the way of the row."""
    swallows: bool = False
    commits: bool = False
    """By a call of the way's own object."""
    late: bool = False
    """Asks for a write that will fail."""
    aside: str = ""
    """What somebody else does meanwhile."""
    raises: bool = False


POINTS = {
    "nowhere": Point(DONE),
    "cancelled": Point(
        DONE, aside="UPDATE task_pending SET cancel_requested_at = now() WHERE id = :id"
    ),
    "handler": Point(CHARGED, "ValueError", raises=True),
    "swallowed": Point(CHARGED, "swallowed a database error", says="SELECT 1 / 0", swallows=True),
    "commit()": Point(CHARGED, "commits together with the task's outcome", commits=True),
    "COMMIT": Point(CHARGED, "commits together with the task's outcome", says="COMMIT"),
    "hidden COMMIT": Point(
        FOR_GOOD, "ended the transaction", says="INSERT INTO effect VALUES (0, $$a;b$$); COMMIT"
    ),
    "late write": Point(CHARGED, "division by zero", late=True),
    "deferred trigger": Point(CHARGED, "a wrong row", note="wrong"),
    "at the COMMIT": Point(CHARGED, "division by zero", says="SELECT hides()"),
    "fence": Point(STALE, aside=RETAKEN),
    "their TA002": Point(CHARGED, "task 0: another attempt owns it", note="theirs"),
    "conflict": Point(DONE._replace(calls=2), note="conflict"),
    "backend in the handler": Point(
        LOST, "connection lost", says="SELECT pg_terminate_backend(pg_backend_pid())"
    ),
    "backend before the end": Point(
        LOST, "connection lost", says="SELECT 'task no. {id}!'", aside=KILL
    ),
}
ANSWER = Point(LOST)
"""The COMMIT is not answered."""
WRITTEN = {"COMMIT": "COMMIT", "hidden COMMIT": f"{COMMENT} COMMIT"}
"""Said by ctx.write, which takes one statement."""
OF_ONE_STATEMENT = {"swallowed", "commit()", "backend in the handler", "backend before the end"}
HAPPENS = {
    "none": {"nowhere", "cancelled", "handler", "fence"},
    "write": POINTS.keys() - OF_ONE_STATEMENT,
    "orm": POINTS.keys() - {"commit()"},
}
"""What can happen to ways that cannot say all."""
WAYS = ["none", "write", "used", "connection", "session", "raw", "orm"]
"""To write; used: ctx.write behind a statement of ctx.connection."""


class Setting(NamedTuple):
    """Who runs the tasks, and what they are."""

    lane: str = "plain"
    circumstance: str = "row"
    took_place: bool = False
    """A COMMIT that was not answered did."""

    @property
    def once(self) -> bool:
        return self.circumstance == "once"

    @property
    def prepares(self) -> bool:
        """Not behind a pooler; there no writes share a round trip, either."""
        return self.lane != "pooled"

    @property
    def history(self) -> str:
        return self.circumstance if self.circumstance in {"none", "failures"} else "all"


PLAIN = Setting()


class Case(NamedTuple):
    """One task: how it writes, and where it fails."""

    way: str
    name: str
    told: bool = False
    """It sets its sub-status, and has a session whether it uses it or not."""

    @property
    def point(self) -> Point:
        return ANSWER if self.name == "answer" else POINTS[self.name]

    def fate(self, setting: Setting = PLAIN) -> Fate:
        """What is to be seen behind its first attempt."""
        fate = self.point.fate
        is_sent_again = self.way == "write" and setting.prepares and not setting.once
        if self.name == "answer" and (setting.took_place or is_sent_again):
            fate = DONE
        if self.name == "conflict" and setting.once:
            fate = CHARGED
        elif self.name == "conflict" and is_sent_again:
            fate = DONE
        if self.name == "hidden COMMIT" and self.way == "used":
            fate = fate._replace(rows=0)  # what is written late comes behind it
        if self._dies_unseen:
            fate = CHARGED
        if setting.once and fate.state == "PENDING":
            fate = fate._replace(state="FAILED", failures=1, crashes=0)
        return fate._replace(rows=0) if self.way == "none" else fate

    def last(self, setting: Setting = PLAIN) -> Fate:
        """What is to be seen when all that was left has run."""
        fate = self.fate(setting)
        if fate.state in {"SUCCEEDED", "FAILED"}:
            return fate
        if setting.once:  # the rescue ends what nobody runs
            return fate._replace(state="FAILED", crashes=1)
        return Fate("SUCCEEDED", rows=int(self.way != "none"), calls=fate.calls + 1)

    def error(self, setting: Setting = PLAIN) -> str:
        """What its line in the history says, in part."""
        if self._dies_unseen:
            return "AdminShutdown"
        waited = setting.lane == "django" and self.way == "used"  # its late writes go one by one
        if setting.once and self.name == "backend before the end" and not waited:
            return "outcome unknown"
        return "the first time" if setting.once and self.name == "conflict" else self.point.error

    def sub_status(self, setting: Setting, *, at_last: bool) -> Any:
        """What it said last, if that stands."""
        first = self.fate(setting)
        if at_last and not setting.once and first.state in {"PENDING", "RUNNING"}:
            return "attempt 2" if self.told else None
        if first.state == "RUNNING" or first == LOST:  # it is given back as it was
            return None
        return "attempt 1" if self.told else None

    def leaves_no_row(self, setting: Setting, fate: Fate) -> bool:
        """Whether nothing of the task is kept."""
        needed_one = self.fate(setting).state == "SUCCEEDED"
        return fate.state == "SUCCEEDED" and (
            setting.history == "none" or (setting.history == "failures" and needed_one)
        )

    @property
    def _dies_unseen(self) -> bool:
        """It meets psycopg's own error, which might be another database's."""
        return self.name == "backend in the handler" and self.way == "raw"


def cases(ways: Sequence[str] = WAYS, names: Collection[str] = POINTS) -> list[Case]:
    """Each way at each point; behind it one that nothing befalls, or that raises at first."""
    found = list[Case]()
    for way in ways:
        for place, name in enumerate(name for name in names if name in HAPPENS.get(way, POINTS)):
            found.append(Case(way, name, told=place % 2 == 1))
            if POINTS[name].note or name == "at the COMMIT":
                found.append(Case(way, "handler"))
            found.append(Case(way, "nowhere"))
    return found


@contextmanager
def triggers(bench: Bench) -> Iterator[None]:
    """While this lasts, what a run writes may fail when it ends."""
    bench.sql(TRIGGERS)
    try:
        yield
    finally:
        bench.sql("DROP TRIGGER heeds ON effect; DROP FUNCTION heed, hides; DROP SEQUENCE tries")


class Actor:
    """Handlers that do what their case says."""

    def __init__(self, aside: Callable[[str, int], object], runs: list[Any]) -> None:
        self._aside = aside
        self._runs = runs
        self.seen_early: list[int] = []
        """Whose effects others saw before their end."""
        self.at_answer: Callable[[], object] = lambda: None

    def plain(self, ctx: Any, payload: dict[str, Any]) -> None:
        case, point, query = self._begin(ctx, payload)
        self.write(ctx, case.way, point.note)
        if query:
            with suppress(*[Exception] * point.swallows):
                self.say(ctx, case.way, query)
        if point.commits:
            self.commit(ctx, case.way)
        self._end(ctx, point)

    async def waiting(self, ctx: Any, payload: dict[str, Any]) -> None:
        """The same in the event loop."""
        if payload["case"][0] in {"none", "write"}:
            self.plain(ctx, payload)
        else:
            await in_the_loop(self.plain, ctx, payload)

    def _begin(self, ctx: Any, payload: dict[str, Any]) -> tuple[Case, Point, str]:
        case = Case(*payload["case"])
        self._runs.append(ctx.task_id)
        point = case.point if ctx.attempt == 1 else POINTS["nowhere"]
        if point is ANSWER:
            self.at_answer()
        if case.told:
            ctx.set_sub_status(f"attempt {ctx.attempt}")
            assert ctx.session is not None  # lent, if not used
        query = point.says.format(id=ctx.task_id)
        if query and case.way == "write":
            query = WRITTEN.get(case.name, query)
        return case, point, query

    def _end(self, ctx: Any, point: Point) -> None:
        if point is POINTS["nowhere"] and self._aside(SEEN, ctx.task_id):
            self.seen_early.append(ctx.task_id)
        if point.late:
            ctx.write(LATE, (0,))
        if point.aside:
            self._aside(point.aside, ctx.task_id)
        if point.raises:
            raise ValueError

    def write(self, ctx: Any, way: str, note: str) -> None:
        values = (ctx.task_id, note)
        match way:
            case "used":
                self.say(ctx, way, "SELECT 1")
                ctx.write(INSERT, values)
            case "write":
                ctx.write(INSERT, values)
            case "connection":
                ctx.connection.execute(text(EFFECT), {"id": ctx.task_id, "note": note})
            case "session":
                ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": note})
            case "raw":
                ctx.connection.connection.driver_connection.execute(INSERT, values)
            case "orm":
                ctx.session.add(Effect(*values))

    def say(self, ctx: Any, way: str, query: str) -> None:
        match way:
            case "write":
                ctx.write(query)
            case "used" | "connection":
                ctx.connection.exec_driver_sql(query)
            case "session" | "orm":
                ctx.session.flush()
                ctx.session.execute(text(query))
            case "raw":
                ctx.connection.connection.driver_connection.execute(query)

    def commit(self, ctx: Any, way: str) -> None:
        match way:
            case "session":
                ctx.session.commit()
            case "raw":
                ctx.connection.connection.driver_connection.commit()
            case _:
                ctx.connection.commit()


STALE_OF_TRIAL = re.compile(
    r"task (\d+)(?: \(\w+\))?: the lease was lost, its outcome is not kept.*"
)
AGAIN = re.compile(r"task (\d+) \(t\) is given back uncharged, to run again: connection lost")
LAPSE = "UPDATE task_pending SET lease_until = now() - interval '1h' WHERE state = 'RUNNING'"
SPLIT = """
    SELECT coalesce(array_agg(e.task_id), '{}')
    FROM effect e JOIN task_completed c ON c.id = e.task_id
    WHERE e.xmin::text <> c.xmin::text
    OR (SELECT count(*) FROM effect o WHERE o.xmin::text = e.xmin::text) > 1
"""
LEFT = (
    "SELECT count(*) FROM task_attempt a WHERE NOT EXISTS (SELECT FROM task_all WHERE id = task_id)"
)
ROWS = text("SELECT count(*) FROM effect WHERE task_id = :id")


def differences(
    connection: Connection,
    tasks: dict[int, Case],
    runs: Sequence[int],
    setting: Setting,
    *,
    at_last: bool = False,
) -> list[str]:
    """Return what is not to be seen as it should be."""
    found = []
    for task_id, case in tasks.items():
        task, lines = browse.get(connection, task_id), browse.failed_attempts(connection, task_id)
        want = case.last(setting) if at_last else case.fate(setting)
        said = "; ".join(f"{line.kind}: {line.message}" for line in lines)
        rows, calls = connection.execute(ROWS, {"id": task_id}).scalar_one(), runs.count(task_id)
        if case.name == "conflict":
            calls = min(calls, want.calls)  # the trigger forgets one where two run at a time
        if task is None or (at_last and task.state == "SUCCEEDED"):  # it keeps what befell it
            seen = Fate("SUCCEEDED", rows=rows, calls=calls)
        else:
            seen = Fate(task.state.value, task.failures, task.crashes, rows, calls)
        if seen != want or (case.error(setting) not in said and task is not None):
            found.append(f"{case}: {seen}, not {want}; {said}")
        if (task is None) is not case.leaves_no_row(setting, want):
            found.append(f"{case}: {task}")
        elif task and task.sub_status != (told := case.sub_status(setting, at_last=at_last)):
            found.append(f"{case}: {task.sub_status}, not {told}")
    return found


class Trial:
    """On one workbench, in one setting."""

    def __init__(self, bench: Bench, setting: Setting, kind: type[Actor] = Actor) -> None:
        self._bench = bench
        self._setting = setting
        self._groups: list[Group] = []
        self._tasks: dict[int, Case] = {}
        self.actor = kind(lambda query, task_id: bench.sql(query, id=task_id), bench.runs)
        known_as_writes(INSERT, LATE, "SELECT hides()")
        options: dict[str, Any] = {"at_most_once": True} if setting.once else {"retry": "1h"}
        act = self.actor.waiting if setting.lane == "async" else self.actor.plain
        bench.handler("t", history=setting.history, **options)(act)
        bench.succeeding("then")
        bench.succeeding("else")

    def create(self, table: Sequence[Case]) -> None:
        """Create a task for each; members that fail for good have a group of their own."""
        new = [NewTask("t", {"case": list(case)}) for case in table]
        with self._bench.engine.begin() as connection:
            if self._setting.circumstance != "group":
                self._tasks = dict(zip(create_tasks(connection, new), table, strict=True))
                return
            for state in ("SUCCEEDED", "FAILED"):
                mine = [n for n, case in enumerate(table) if case.last().state == state]
                calls = {"then": NewTask("then"), "on_failure": NewTask("else")}
                made = create_group(connection, [new[n] for n in mine], **calls)
                self._groups.append(made)
                self._tasks |= zip(made.task_ids, (table[n] for n in mine), strict=True)

    def run(self, **options: Any) -> None:
        """Run all as one message."""
        child = self._bench.child(
            **options,
            give_back_after=60,
            extra_threads=2 if self._setting.circumstance == "threads" else 0,
            async_concurrency=1,
            prepare=self._setting.prepares,
        )
        if self._setting.circumstance != "slow":
            warm(child)
        child.execute(sorted(self._tasks))
        until(lambda: child.inflight.empty)
        child.stop()

    def run_what_is_left(self) -> None:
        """Rescue what nobody runs any more, let no wait last, and run what comes."""
        self._bench.sql(LAPSE)
        with self._bench.engine.begin() as connection:
            rescue_expired(connection, lease=LEASE, max_crashes=5)
        self._bench.sql(NOW_DUE)
        self._bench.drain(prepare=self._setting.prepares, give_back_after=60)

    def faults(self, log: pytest.LogCaptureFixture) -> list[Any]:
        """Run all, and then what is left; return what was not as it should be."""
        self.run()
        found = [*self.differences(), *self.actor.seen_early, *self.told_wrong(log.messages)]
        self.run_what_is_left()
        found += [*self.differences(at_last=True), *self.in_two_transactions()]
        return [*found, *self.wrong_groups(), *["an attempt"] * self.attempts_without_a_task()]

    def told_wrong(self, messages: Sequence[str]) -> set[int]:
        """Return tasks that lost lease or connection, and the log says nothing, or the reverse."""

        def told(what: re.Pattern[str]) -> set[int]:
            return {int(found[1]) for said in messages if (found := what.fullmatch(said))}

        lost = {i for i, case in self._tasks.items() if case.fate(self._setting) == LOST}
        stale = {task_id: case for task_id, case in self._tasks.items() if case.name == "fence"}
        unsaid = {i for i, case in stale.items() if case.way == "none" and self._setting.once}
        return (told(STALE_OF_TRIAL) ^ (stale.keys() - unsaid)) | (told(AGAIN) ^ lost)

    def differences(self, *, at_last: bool = False) -> list[str]:
        """Return what is not as it should be behind the first attempts, or at last."""
        with self._bench.engine.connect() as connection:
            return differences(
                connection, self._tasks, self._bench.runs, self._setting, at_last=at_last
            )

    def in_two_transactions(self) -> list[int]:
        """Return tasks whose effect and move are not in one transaction of their own."""
        return list(self._bench.sql(SPLIT))

    def wrong_groups(self) -> list[str]:
        """Return groups that have not counted each member once, or not called once."""
        wrong = []
        with self._bench.engine.connect() as connection:
            for made in self._groups:
                found = some(groups.get_group(connection, made.id))
                ends = [self._tasks[task_id].last().state for task_id in made.task_ids]
                counted = ends.count("SUCCEEDED"), ends.count("FAILED")
                calls = self._bench.runs.count(made.callback_id)
                if (found.succeeded, found.failed, calls) != (*counted, 1):
                    wrong.append(f"{found}, not {counted}; {calls} calls of its callback")
        return wrong

    def attempts_without_a_task(self) -> int:
        """Count lines of the history that outlived their rows."""
        return int(self._bench.sql(LEFT))
