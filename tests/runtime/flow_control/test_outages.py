"""Outages charge nothing up to a cap, and breakers hold back what would meet one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks_app import Breaker, DependencyDown, Retry, Skip, explain_task, requeue_task
from tasks_app.domain.errors import HandlerError
from tasks_app.domain.handlers.outcomes import OutageRule, Outages, Reaction, parse_outage_limit
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.pool.flow_control import circuit_breakers as rows
from tasks_app.runtime.flow_control.breakers import (
    SHARE,
    DependencyCounts,
    DependencyReport,
    advance_breakers,
    bring_in_breakers,
    is_dependency_failure,
)
from tasks_app.runtime.handlers.registry import Registry, handler
from tests.broker.celery_process import HOUSE
from tests.clock import until
from tests.runtime.bench import NOW_DUE, Bench, due_in_s
from tests.runtime.handler_db.twins import twin

COUNTED = "SELECT outages FROM task_pending WHERE id = :id"


def down() -> DependencyDown:
    return DependencyDown("bank", "the bank does not answer")


@pytest.mark.timeout(100, method="thread")
class TestOutages:
    @pytest.mark.test_all
    def test_an_outage_charges_nothing_and_waits_by_its_own_policy(self, bench: Bench) -> None:
        bench.raising(down(), max_attempts=1, dependency_retry="10m,1h")
        task_id = bench.run_one()
        task = bench.task(task_id)
        assert (task.state, task.failures, task.attempt, task.retry_level) == ("PENDING", 0, 1, 0)
        assert 590 < due_in_s(bench, task_id) <= 600
        assert bench.sql(COUNTED, id=task_id) == 1
        assert [(a.event, a.kind) for a in bench.attempts(task_id)] == [("retry", "DependencyDown")]

        bench.sql(NOW_DUE)
        bench.drain()

        assert 3590 < due_in_s(bench, task_id) <= 3600
        assert len(bench.attempts(task_id)) == 1

    def test_a_wait_of_its_own_wins(self, bench: Bench) -> None:
        bench.raising(DependencyDown("bank", retry_in="7m"))
        task_id = bench.run_one()
        assert 410 < due_in_s(bench, task_id) <= 420

    @pytest.mark.parametrize(
        "given", [{"dependency_errors": [OSError]}, {"on_error": {OSError: "outage"}}]
    )
    def test_declared_errors_are_outages(self, bench: Bench, given: dict[str, Any]) -> None:
        bench.raising(ConnectionError("no"), dependency_retry="1h", **given)
        task_id = bench.run_one()
        assert (bench.state(task_id), bench.task(task_id).failures) == ("PENDING", 0)

    @pytest.mark.parametrize("is_async", [False, True])
    def test_above_its_number_each_outage_is_charged(self, bench: Bench, is_async: bool) -> None:
        given = {"dependency_limit": 3, "dependency_retry": "0s", "retry": "0s", "max_attempts": 2}

        def h(ctx: Any) -> None:
            bench.runs.append(ctx.failures)
            raise down()

        bench.handler("t", **given)(twin(h, is_async=is_async))
        task_id = bench.run_one()
        assert bench.runs == [0, 0, 0, 0, 1]
        assert bench.state(task_id) == "FAILED"

    def test_above_its_age_it_fails_as_declared(self, bench: Bench) -> None:
        bench.raising(down(), dependency_limit="1h", dependency_then="fail", dependency_retry="0s")
        task_id = bench.create(delay="1h")
        bench.sql("UPDATE task_pending SET outages = 9, outage_since = now() - interval '61 min'")
        bench.sql(NOW_DUE)
        bench.drain()
        assert (bench.state(task_id), len(bench.runs)) == ("FAILED", 1)

    @pytest.mark.test_all
    def test_a_requeue_begins_to_count_anew(self, bench: Bench) -> None:
        bench.raising(down(), dependency_limit=1, dependency_then="fail", dependency_retry="0s")
        task_id = bench.run_one()
        assert bench.state(task_id) == "FAILED"
        bench.do(requeue_task, task_id)
        assert bench.sql(COUNTED, id=task_id) is None
        bench.drain()
        assert len(bench.runs) == 4

    @pytest.mark.test_all
    def test_a_task_that_may_run_once_may_say_that_nothing_happened(self, bench: Bench) -> None:
        bench.raising(down(), at_most_once=True, dependency_retry="1h")
        task_id = bench.run_one()
        assert bench.state(task_id) == "PENDING"

    @pytest.mark.test_all
    def test_a_run_that_meets_none_never_has_it_written(self, bench: Bench) -> None:
        bench.raising(Retry("later", after="1h"))
        task_id = bench.run_one()
        assert bench.sql(COUNTED, id=task_id) is None

    def test_explain_tells_of_outages(self, bench: Bench) -> None:
        bench.raising(down(), dependency_retry="1h")
        task_id = bench.run_one()
        said = bench.do(explain_task, task_id, settings=bench.settings()).findings[0]
        assert said.subject == "not due"
        assert "a dependency was down 1 time, first" in said.fact
        assert "charges nothing, 0 failures charged" in said.fact


@pytest.mark.timeout(100, method="thread")
class TestDeclarations:
    @pytest.mark.parametrize(
        "given",
        [
            {"dependency_errors": [OSError], "at_most_once": True},
            {"dependency_errors": [OSError], "on_error": {OSError: "fail"}},
            {"dependency_errors": ["OSError"]},
            {"dependency_limit": 0},
            {"dependency_limit": "soon"},
            {"dependency_then": "retry_free"},
            {"dependency_retry": "now"},
            {"depends_on": "a bank"},
            {"depends_on": Breaker("bank", probes=0)},
            {"on_interrupt": "outage"},
        ],
    )
    def test_what_cannot_work_is_refused(self, given: dict[str, Any]) -> None:
        with pytest.raises(HandlerError):
            handler("t", registry=Registry(), **given)(lambda ctx: None)

    def test_one_dependency_has_one_breaker(self) -> None:
        registry = Registry()
        handler("a", depends_on=Breaker("bank", probes=1), registry=registry)(lambda ctx: None)
        with pytest.raises(HandlerError, match="same Breaker object"):
            handler("b", depends_on="bank", registry=registry)(lambda ctx: None)

    def test_limits(self) -> None:
        rule = OutageRule(most=3, longest=None)
        assert [rule.is_over(Outages(n, timedelta(days=9))) for n in (3, 4)] == [False, True]
        assert parse_outage_limit(5) == (5, None)
        assert parse_outage_limit("2d") == (None, timedelta(days=2))

    def test_which_errors_speak_of_the_dependency(self) -> None:
        spec = HandlerSpec("t", lambda ctx: None)
        strict = HandlerSpec("t", lambda ctx: None, on_error={OSError: Reaction.OUTAGE})
        assert is_dependency_failure(spec, ValueError())
        assert is_dependency_failure(spec, down())
        assert not is_dependency_failure(spec, Skip())
        assert not is_dependency_failure(spec, KeyboardInterrupt())
        assert is_dependency_failure(strict, ConnectionError())
        assert not is_dependency_failure(strict, ValueError())


@pytest.mark.timeout(100, method="thread")
class TestBreakers:
    def declared(
        self, bench: Bench, error: BaseException | None = None, **given: Any
    ) -> DependencyCounts:
        """A handler that fails as long as the switch is on."""
        self.broken = error is not None

        @bench.handler("pay", depends_on=Breaker("bank", least=3, probes=1), **given)
        def pay(ctx: Any) -> None:
            bench.runs.append(ctx.task_id)
            if self.broken:
                assert error is not None
                raise error

        work = bench.work()
        bring_in_breakers(work.child.database, bench.registry)
        self.work = work
        return DependencyCounts()

    def state(self, bench: Bench) -> str:
        return bench.sql("SELECT state FROM task_breaker")

    @pytest.mark.test_all
    def test_a_dead_dependency_opens_it_and_its_return_closes_it(self, bench: Bench) -> None:
        """All of it: children that report, somebody who scans, tasks that are held uncharged."""
        self.declared(bench, down(), dependency_retry="100ms")
        bench.beside(self.work.run)
        ids = [bench.create("pay") for _ in range(20)]
        until(lambda: self.state(bench) == "open", 30)

        def explained() -> list[str]:
            said = bench.do(explain_task, ids[-1], settings=bench.settings())
            return [finding.subject for finding in said.findings]

        until(lambda: "breaker" in explained(), 10)  # it may run, as one of the last ones
        bench.sql("UPDATE task_breaker SET open_for = '1 s'")
        bench.sql("UPDATE task_breaker SET look_at = now()")
        until(lambda: bench.sql("SELECT count(*) FROM task_pending WHERE failures > 0") == 0, 5)
        self.broken = False

        until(lambda: bench.sql("SELECT count(*) FROM task_completed") == 20, 60)
        until(lambda: self.state(bench) == "closed", 30)
        assert bench.sql("SELECT max(failures) FROM task_completed") == 0

    def test_a_child_reports_in_sums(self, bench: Bench) -> None:
        self.declared(bench)
        counts = DependencyCounts()
        report = DependencyReport(self.work.child.database, counts)
        counts.add("bank", 5, 1)
        counts.add("bank", 5, 0)
        counts.add("post", 1, 0)

        report.tell()
        counts.add("bank", 1, 0)
        report.tell()

        assert bench.sql("SELECT sum(good) || '/' || sum(bad) FROM task_breaker_count") == "10/1"
        assert counts.drain() == {"bank": (1, 0)}

    def test_a_failure_is_reported_at_once_and_a_storm_of_them_is_not(self, bench: Bench) -> None:
        """At once while few are missing until it opens; a share of what is missing may wait."""
        self.declared(bench)
        counts = DependencyCounts()
        report = DependencyReport(self.work.child.database, counts)
        for _ in range(2):
            counts.add("bank", 0, 1)
            report.report_failures()
            assert counts.drain() == {}
        counts.add("bank", 40 * SHARE, 1)
        report.report_failures()
        for _ in range(30):
            counts.add("bank", 0, 1)
            report.report_failures()

        assert counts.drain() == {"bank": (0, 30)}

    def test_a_failure_that_nobody_could_report_is_reported_later(self, bench: Bench) -> None:
        self.declared(bench)
        counts = DependencyCounts()
        report = DependencyReport(self.work.child.database, counts)
        bench.sql("ALTER TABLE task_breaker_count RENAME TO away")
        counts.add("bank", 0, 1)
        report.report_failures()
        bench.sql("ALTER TABLE away RENAME TO task_breaker_count")
        report.report_failures()
        assert bench.sql("SELECT sum(bad) FROM task_breaker_count") == 1

    def test_what_was_claimed_before_it_opened_is_given_back(self, bench: Bench) -> None:
        @bench.handler("pay", depends_on=Breaker("bank", least=1), dependency_retry="1h")
        def pay(ctx: Any) -> None:
            bench.runs.append(ctx.task_id)
            if len(bench.runs) > 1:  # it began before the report
                until(lambda: not child.inflight.waiting)
            raise down()

        ids = [bench.create("pay") for _ in range(10)]
        child = bench.child(give_back_after=60)
        bring_in_breakers(child.database, bench.registry)
        child.execute(ids)

        assert len(bench.runs) <= 2
        until(lambda: bench.states(ids) == ["PENDING"] * 10)
        assert bench.sql("SELECT count(*) FROM task_pending WHERE failures > 0") == 0

    @pytest.mark.test_all
    def test_few_more_calls_go_out_than_its_threshold(self, bench: Bench) -> None:
        """Of 60 due ones, by two children."""
        held_up = bench.event()

        @bench.handler("pay", depends_on=Breaker("bank", least=5), dependency_retry="1h")
        def pay(ctx: Any) -> None:
            bench.runs.append(ctx.task_id)
            held_up.wait(0.05)  # as a call does
            raise down()

        works = [bench.work() for _ in range(2)]
        bring_in_breakers(works[0].child.database, bench.registry)
        for _ in range(60):
            bench.create("pay")
        for work in works:
            bench.beside(work.run)
        until(lambda: bench.sql("SELECT count(*) FROM task_breaker_held") > 30, 30)

        assert 5 <= len(bench.runs) <= 6

    def test_handlers_that_depend_on_nothing_are_not_counted(self) -> None:
        counts = DependencyCounts()
        spec = HandlerSpec("t", lambda ctx: None)
        assert counts.watch(spec, lambda: 5) == 5
        assert counts.drain() == {}

    def test_whoever_scans_lets_probes_through(self, bench: Bench) -> None:
        self.declared(bench)
        ids = [bench.create("pay") for _ in range(3)]
        with bench.engine.begin() as connection:
            rows.override(connection, "bank", rows.BreakerMode.OPEN)
            assert rows.find_breakers(connection)[0].names == ["pay"]
        self.work.tidy()
        assert bench.sql("SELECT count(*) FROM task_breaker_held") == 3

        bench.do(rows.override, "bank", rows.BreakerMode.AUTO)

        assert advance_breakers(self.work.child.database)
        parked = "SELECT id FROM task_pending WHERE parked = 'let through by breaker bank'"
        assert bench.sql(parked) == ids[0]


CHILDREN, LEAST, TASKS = 4, 40, 400
CREATE = (
    "SELECT count(task_create('pay', CAST(:payload AS jsonb))) FROM generate_series(1, :number)"
)


@pytest.fixture
def calls(bench: Bench, tmp_path: Path) -> Iterator[Path]:
    """The file that notes the calls of four children of one ``tasks-app work``."""
    log = tmp_path / "calls"
    log.touch()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")},
        "TASKS_APP_DATABASE_URL": bench.url,
        "TASKS_APP_IMPORTS": "outage_handlers",
        "CALL_LOG": str(log),
        "PYTHONPATH": str(HOUSE),
    }
    command = [sys.executable, "-m", "tasks_app", "work", f"--concurrency={CHILDREN}"]
    worker = subprocess.Popen(command, env=environment)
    try:
        yield log
    finally:
        worker.terminate()
        worker.wait(60)


@pytest.mark.test_all
@pytest.mark.timeout(200)
def test_few_more_calls_go_out_than_its_threshold(bench: Bench, calls: Path) -> None:
    """While 40 are missing, two of each child may wait for their second; and one is under way."""
    until(lambda: bench.sql("SELECT count(*) FROM task_worker") == CHILDREN, 60, "children")
    bench.sql(CREATE, payload='{"up": true}', number=400)  # so they know that it is fast
    until(lambda: bench.sql("SELECT sum(good) FROM task_breaker_count") == 400, 60, "reports")
    bench.sql("DELETE FROM task_breaker_count")
    bench.sql(CREATE, payload="{}", number=TASKS)

    def gone_out() -> int:
        return len(calls.read_text().splitlines())

    held = "SELECT count(*) FROM task_breaker_held"
    until(lambda: gone_out() + bench.sql(held) == TASKS, 60, "an end")

    assert LEAST <= gone_out() <= LEAST + CHILDREN * 3
    assert bench.sql("SELECT state FROM task_breaker") == "open"
    assert bench.sql("SELECT count(*) FROM task_pending WHERE failures > 0") == 0
