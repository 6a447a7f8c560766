"""A trial of the contract: a task for each case, its runs, and what was not as it should be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app import Group, NewTask, create_group, create_tasks
from tasks_app.pool import task_groups as groups
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.pool.tasks import browse
from tests.factory import LEASE
from tests.runtime.bench import NOW_DUE, Bench
from tests.runtime.ends.points import INSERT, LATE, LOST, Actor, Case, Fate, Setting
from tests.runtime.execution.warm_child import known_as_writes, warm
from tests.waiting import until

STALE = re.compile(r"task (\d+)(?: \(\w+\))?: the lease was lost, its outcome is not kept.*")
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
        return (told(STALE) ^ (stale.keys() - unsaid)) | (told(AGAIN) ^ lost)

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
                found = groups.get_group(connection, made.id)
                assert found is not None
                ends = [self._tasks[task_id].last().state for task_id in made.task_ids]
                counted = ends.count("SUCCEEDED"), ends.count("FAILED")
                calls = self._bench.runs.count(made.callback_id)
                if (found.succeeded, found.failed, calls) != (*counted, 1):
                    wrong.append(f"{found}, not {counted}; {calls} calls of its callback")
        return wrong

    def attempts_without_a_task(self) -> int:
        """Count lines of the history that outlived their rows."""
        return int(self._bench.sql(LEFT))
