"""Tasks in SQL: one statement, the payload's values beside it, one commit with the outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tasks_app import create_task, sql_handler
from tasks_app.domain.errors import HandlerError, InvalidTaskError
from tasks_app.domain.tasks.records import Task
from tasks_app.runtime.handlers.registry import Registry
from tests.clock import until
from tests.runtime.bench import Bench

NOTE = "INSERT INTO effect (task_id, note) VALUES (:id, :note)"
NASTY = "'); DROP TABLE effect; -- %s :id $1 \\"
Declare = Callable[..., Any]


@pytest.fixture
def declare(bench: Bench) -> Declare:
    def declared(statement: str = NOTE, name: str = "t", **options: Any) -> Any:
        return sql_handler(name, statement, registry=bench.registry, **options)

    return declared


@pytest.fixture
def ran(bench: Bench) -> Callable[..., Task]:
    def run(payload: Any = None, **options: Any) -> Task:
        task_id = bench.execute_one("t", payload, **options)
        return bench.task(task_id)

    return run


def notes(bench: Bench) -> list[Any]:
    return bench.rows("SELECT task_id, note FROM effect ORDER BY 1, 2")


def procedure(bench: Bench, body: str, arguments: str = "") -> None:
    bench.sql(f"CREATE OR REPLACE PROCEDURE work({arguments}) LANGUAGE plpgsql AS $$ {body} $$")


class TestDeclared:
    def test_it_is_a_handler_with_all_options(self, bench: Bench, declare: Declare) -> None:
        made = declare(NOTE, "report.note", queue="reports", retry="5s,30s", timeout="30s")
        spec = bench.registry.get("report.note")
        assert spec is made.spec
        assert (spec.queue, spec.max_attempts, spec.is_async) == ("reports", 3, False)
        assert made.__module__ == __name__
        assert made.__doc__ == NOTE

    def test_what_is_wrong_is_said_where_it_stands(self, declare: Declare) -> None:
        with pytest.raises(
            HandlerError, match=r"'t' is declared wrongly: statement is more than one"
        ):
            declare("SELECT 1; SELECT 2")
        with pytest.raises(HandlerError, match=r"has no option retries"):
            declare(retries="5s")

    def test_a_second_module_may_not_take_its_name(self) -> None:
        registry = Registry()
        elsewhere = {"__name__": "elsewhere", "sql_handler": sql_handler, "registry": registry}
        sql_handler("t", NOTE, registry=registry)
        sql_handler("t", NOTE, registry=registry)
        with pytest.raises(
            HandlerError, match=r"handled by .*test_sql_handler\.sql_handler\('t'\)"
        ):
            exec("sql_handler('t', 'SELECT 1', registry=registry)", elsewhere)

    def test_a_schedule_of_its_own_gives_no_values(self, bench: Bench, declare: Declare) -> None:
        declare("SELECT 1", "without", every="1h")
        assert "without" in bench.registry.schedules
        with pytest.raises(HandlerError, match=r"needs id, note\. Use schedule\("):
            declare(NOTE, "with", every="1h")


class TestValues:
    def test_a_value_is_never_part_of_the_statement(self, bench: Bench, declare: Declare) -> None:
        declare()
        ids = [bench.create("t", {"id": n, "note": NASTY}) for n in range(6)]
        bench.execute(ids)
        assert {bench.task(i).state for i in ids} == {"SUCCEEDED"}
        assert notes(bench) == [(n, NASTY) for n in range(6)]

    def test_postgresql_reads_each_as_its_place_asks(
        self, bench: Bench, declare: Declare, ran: Callable[..., Task]
    ) -> None:
        given = "day date, n numeric, yes boolean, lines jsonb, nothing text, größe bigint"
        words = "concat_ws('|', day + 1, n * 2, NOT yes, lines->1, nothing IS NULL, größe)"
        procedure(bench, f"BEGIN INSERT INTO effect VALUES (1, {words}); END", given)
        declare("CALL work(:day, :n, :yes, :lines, :nothing, :größe)")
        task = ran(
            {"day": "2026-02-28", "n": 1.25, "yes": True, "lines": [1, {"a": None}]}
            | {"nothing": None, "größe": 2**62}
        )
        assert task.state == "SUCCEEDED", bench.attempts(task.id)
        assert notes(bench) == [(1, f'2026-03-01|2.50|f|{{"a": null}}|t|{2**62}')]

    def test_the_payload_has_just_the_parameters(self, bench: Bench, declare: Declare) -> None:
        made = declare()
        with bench.engine.begin() as connection:
            for payload, problem in (
                ({"id": 1}, r"payload\.note is refused: Field required"),
                ({"id": 1, "note": "", "x": 1}, r"payload\.x is refused: Extra inputs"),
                (None, r"payload\.id is refused: Field required"),
            ):
                with pytest.raises(InvalidTaskError, match=problem):
                    create_task(connection, made, payload)

    def test_a_payload_written_past_the_checks_fails_at_once(
        self, bench: Bench, declare: Declare, ran: Callable[..., Task]
    ) -> None:
        declare(retry="1h,1h")
        task = ran({"id": 1})
        assert task.state == "FAILED"
        assert bench.attempts(task.id)[0].message.startswith("payload.note is refused")
        assert notes(bench) == []

    def test_a_statement_without_parameters_takes_no_payload(
        self, bench: Bench, declare: Declare, ran: Callable[..., Task]
    ) -> None:
        declare("INSERT INTO effect SELECT 5 % 3, 'per cent' FROM generate_series(1, 3)")
        task = ran()
        assert (task.state, task.result) == ("SUCCEEDED", {"rows": 3})
        assert notes(bench) == [(2, "per cent")] * 3


class TestOutcome:
    def test_effect_and_failed_outcome_never_stand_together(
        self, bench: Bench, declare: Declare, ran: Callable[..., Task]
    ) -> None:
        procedure(bench, "BEGIN INSERT INTO effect VALUES (1, 'gone'); PERFORM 1/0; END")
        declare("CALL work()", retry="1h")
        task = ran()
        assert (task.state, task.failures) == ("PENDING", 1)
        assert "division by zero" in bench.attempts(task.id)[0].message
        assert notes(bench) == []

    def test_an_error_has_no_frames_of_drivers(
        self, bench: Bench, declare: Declare, ran: Callable[..., Task]
    ) -> None:
        declare("SELECT 1 / :n::int", max_attempts=1)
        task = ran({"n": 0})
        assert "division by zero" in str(task.error)
        assert not bench.attempts(task.id)[0].traceback

    def test_a_run_without_its_lease_has_no_effect(self, bench: Bench, declare: Declare) -> None:
        """The procedure itself stands for the one who takes the task over meanwhile."""
        theft = "UPDATE task_pending SET attempt = attempt + 1"
        procedure(bench, f"BEGIN INSERT INTO effect VALUES (1, 'stale'); {theft}; END")
        declare("CALL work()")
        task_id = bench.execute_one("t")
        assert notes(bench) == []
        assert bench.task(task_id).state == "RUNNING"

    def test_a_call_has_no_result(
        self, bench: Bench, declare: Declare, ran: Callable[..., Task]
    ) -> None:
        procedure(bench, "BEGIN INSERT INTO effect VALUES (1, 'called'); END")
        declare("CALL work()")
        task = ran()
        assert (task.state, task.result) == ("SUCCEEDED", None)
        assert notes(bench) == [(1, "called")]

    @pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
    def test_a_procedure_that_ends_the_transaction_fails_at_once(
        self, bench: Bench, declare: Declare, ran: Callable[..., Task], word: str
    ) -> None:
        procedure(bench, f"BEGIN INSERT INTO effect VALUES (1, 'early'); {word}; END")
        declare("CALL work()", retry="1h,1h")
        task = ran()
        assert task.state == "FAILED"
        assert "for example by COMMIT in a procedure" in bench.attempts(task.id)[0].message
        assert notes(bench) == []


class TestTimeout:
    def test_a_slow_one_ends_by_statement_timeout(self, bench: Bench, declare: Declare) -> None:
        """An alarm in this process would cost the session, and leave the statement running."""
        declare("INSERT INTO effect VALUES (pg_backend_pid(), :n)", "quick")
        declare("SELECT pg_sleep(:s::float)", timeout="100ms", retry="1h")
        ids = [bench.create("quick", {"n": "before"}), bench.create("t", {"s": 20})]
        ids.append(bench.create("quick", {"n": "after"}))

        bench.execute(ids)

        (attempt,) = bench.attempts(ids[1])
        assert (attempt.kind, attempt.message) == (
            "HandlerTimeoutError",
            "The handler ran longer than its timeout of 0.1 s.",
        )
        task = bench.task(ids[1])
        assert (task.state, task.failures) == ("PENDING", 1)
        ((one, _), (other, _)) = notes(bench)
        assert one == other

    def test_any_thread_may_run_it_and_a_tasks_own_limit_counts(
        self, bench: Bench, declare: Declare, caplog: pytest.LogCaptureFixture
    ) -> None:
        declare("SELECT pg_sleep(:s::float)", timeout="1h", retry="1h")
        task_id = bench.create("t", {"s": 20}, timeout="100ms")
        bench.beside(bench.execute, [task_id]).join(30)
        assert bench.attempts(task_id)[0].kind == "HandlerTimeoutError"
        assert "cannot enforce" not in caplog.text

    def test_further_threads_take_one_with_a_limit(self, bench: Bench, declare: Declare) -> None:
        both = "SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"
        procedure(
            bench,
            "BEGIN PERFORM pg_advisory_xact_lock_shared(4711);"
            f" WHILE NOT ({both}) LOOP PERFORM pg_sleep(0.01); END LOOP;"
            " PERFORM pg_sleep(0.2); END",
        )
        declare("CALL work()", timeout="20s")
        ids = [bench.create("t"), bench.create("t")]

        bench.execute(ids, extra_threads=1)

        assert bench.states(ids) == ["SUCCEEDED", "SUCCEEDED"]

    def test_a_cancel_by_somebody_is_no_timeout(self, bench: Bench, declare: Declare) -> None:
        declare("SELECT pg_sleep(:s::float) AS cancel_me", timeout="1h", retry="1h")
        task_id = bench.create("t", {"s": 20})
        running = bench.beside(bench.execute, [task_id])
        cancel = (
            "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity"
            " WHERE state = 'active' AND query LIKE '%AS cancel_me%' AND pid <> pg_backend_pid()"
        )
        until(lambda: bench.sql(cancel))
        running.join(30)
        assert "due to user request" in bench.attempts(task_id)[0].message

    def test_the_limit_is_gone_before_the_next_task(
        self, bench: Bench, declare: Declare, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And before the settle: an outcome is not to end by the handler's limit."""
        shown = "INSERT INTO effect SELECT 1, current_setting('statement_timeout')"
        declare(shown, "limited", timeout="50s")
        declare(shown, "free")
        ids = [bench.create(name) for name in ("limited", "free", "limited", "free")]
        monkeypatch.setattr("tasks_app.runtime.run_times.FAST_S", 60.0)
        bench.execute(ids)
        found = [note for _, note in notes(bench)]
        assert sorted(note == "0" for note in found) == [False, False, True, True]
