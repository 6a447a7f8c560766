"""What a handler declares, and what follows from how it ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

from tasks_app.domain.handlers.outcomes import Cancel, Fail, Reaction, Retry, Skip, Snooze
from tasks_app.domain.handlers.settlement import (
    charge_failure,
    policy_of,
    settle_crash,
    settle_exception,
    settle_failure,
    settle_interrupt,
    settle_return,
)
from tasks_app.domain.handlers.spec import Handler, HandlerSpec, parameter_texts, parse_statement
from tasks_app.domain.tasks.payload_type import PayloadType
from tasks_app.domain.tasks.retry_policy import DEFAULT_POLICY, Fixed, Levels
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Fence
from tasks_app.domain.tasks.states import Event

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CAUSE = Cause("ValueError", "no")
WAITS = Levels((timedelta(seconds=5), timedelta(seconds=30), timedelta(seconds=60)))


def a_task(**changes) -> ClaimedTask:
    task = ClaimedTask(
        fence=Fence(7, 1, uuid4()), name="t", queue="default", biz_key=None, payload="{}",
        headers=None, failures=0, crashes=0, retry_level=0, max_attempts=3, at_most_once=False,
        retry=None, timeout_ms=None, hard_timeout_ms=None, key_text=str(uuid4()), created_s=0.0,
        due_s=0.0, cancel_requested=False,
    )  # fmt: skip
    return task._replace(**changes)


def a_spec(**changes) -> HandlerSpec:
    return replace(HandlerSpec("t", lambda ctx: None, retry=WAITS), **changes)


def end(task: ClaimedTask, error: BaseException, **spec):
    return settle_exception(task, a_spec(**spec), error, CAUSE, Random(1))


ENDINGS = [
    # raised, event when attempts are left, at the last attempt, at_most_once; charged?
    (ValueError("no"), Event.RETRY, Event.FAIL, Event.FAIL, True),
    (Retry("again"), Event.RETRY, Event.FAIL, Event.RETRY, True),
    (Snooze("5m"), Event.SNOOZE, Event.SNOOZE, Event.SNOOZE, False),
    (Fail("no use"), Event.FAIL, Event.FAIL, Event.FAIL, True),
    (Skip("done"), Event.SKIP, Event.SKIP, Event.SKIP, False),
    (Cancel("stop"), Event.CANCEL, Event.CANCEL, Event.CANCEL, False),
    (KeyboardInterrupt(), Event.RETRY, Event.FAIL, Event.FAIL, True),
    (MemoryError(), Event.RETRY, Event.FAIL, Event.FAIL, True),
]
NAMES = [type(ending[0]).__name__ for ending in ENDINGS]


@pytest.mark.parametrize("ending", ENDINGS, ids=NAMES)
@pytest.mark.parametrize(
    ("task", "column"),
    [
        ({"failures": 1, "retry_level": 1}, 1),
        ({"failures": 2, "retry_level": 2}, 2),
        ({"at_most_once": True}, 3),
        ({"at_most_once": True, "max_attempts": 1}, 2),
    ],
    ids=["attempts left", "last attempt", "at most once", "at most once, last attempt"],
)
def test_an_ending(ending: tuple, task: dict, column: int) -> None:
    error, charges = ending[0], ending[-1]
    decided = end(a_task(**task), error)
    assert decided.event is ending[column]
    assert decided.failures == task.get("failures", 0) + charges
    assert decided.cause == CAUSE


def test_a_return_is_a_success_that_charges_nothing() -> None:
    task = a_task(failures=2, retry_level=2)
    decided = settle_return(task, '{"a":1}', 12)
    assert (decided.event, decided.failures, decided.retry_level) == (Event.SUCCEED, 2, 2)
    assert (decided.result, decided.run_ms, decided.cause) == ('{"a":1}', 12, None)
    assert decided.fence == task.fence


FREE = {ConnectionError: Reaction.RETRY_FREE}
NEAREST = {Exception: Reaction.FAIL, LookupError: Reaction.RETRY}
WAIT = {"event": Event.RETRY, "failures": 1}
DECISIONS: dict[str, tuple[dict[str, Any], BaseException, dict[type, Reaction], dict]] = {
    # of the task, what is raised, the handler's rules, and what is decided; waits in seconds
    **{
        f"failure {n + 1} waits level {n + 1}": (
            {"failures": n, "retry_level": n, "max_attempts": 10}, ValueError(), {},
            {"retry_level": n + 1, "wait": wait},
        )
        for n, wait in enumerate((5, 30, 60, 60))
    },
    "the level decides the wait and not the number of failures": (
        {"retry_level": 1}, ValueError(), {}, {"retry_level": 2, "wait": 30}
    ),
    "the attempt number limits nothing": (
        {"fence": Fence(7, 1000, uuid4()), "crashes": 4}, ValueError(), {}, WAIT
    ),
    "Retry(after) overrides the wait and still takes a level": (
        {}, Retry(after="7m"), {}, {"wait": 420, "retry_level": 1}
    ),
    "a Retry after nothing comes back at once": ({}, Retry(after=0), {}, {"wait": 0}),
    "a Snooze waits what it asks for and keeps its level": (
        {"failures": 1, "retry_level": 2}, Snooze("5m"), {}, {"wait": 300, "retry_level": 2}
    ),
    "a rule for a class holds for its descendants": (
        {}, KeyError("x"), {LookupError: Reaction.FAIL}, {"event": Event.FAIL}
    ),
    "the rule of the nearest ancestor wins": ({}, KeyError("x"), NEAREST, WAIT),
    "a rule brings an at-most-once task back": (
        {"at_most_once": True}, ConnectionRefusedError(), {ConnectionError: Reaction.RETRY}, WAIT
    ),
    **{
        f"a free retry of level {level} charges nothing even at the last attempt": (
            {"failures": 2, "retry_level": level}, ConnectionError(), FREE,
            {"event": Event.RETRY, "failures": 2, "retry_level": level, "wait": wait},
        )
        for level, wait in enumerate((5, 5, 30))
    },
    "a rule does not touch the five endings": (
        {}, Skip(), {Exception: Reaction.FAIL}, {"event": Event.SKIP}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("task", "error", "rules", "decided"), DECISIONS.values(), ids=DECISIONS)
def test_a_decision(
    task: dict[str, Any], error: BaseException, rules: dict[type, Reaction], decided: dict[str, Any]
) -> None:
    found = end(a_task(**task), error, on_error=rules)._asdict()
    if "wait" in decided:
        found["wait"] = found["wait"].total_seconds()
    assert {name: found[name] for name in decided} == decided


def test_a_death_charges_one_failure_and_waits() -> None:
    decided = settle_crash(a_task(), a_spec(), Cause("process died", "signal 9"), Random(1))
    assert (decided.event, decided.failures, decided.crashes) == (Event.RETRY, 1, None)
    assert decided.wait == timedelta(seconds=5)


def test_the_last_death_leads_to_the_error_pool_with_its_cause() -> None:
    cause = Cause("process died", "signal 9")
    decided = settle_crash(a_task(failures=2), a_spec(), cause, Random(1))
    assert (decided.event, decided.failures, decided.cause) == (Event.FAIL, 3, cause)


def test_a_death_during_an_at_most_once_task_is_an_unknown_outcome() -> None:
    cause = Cause("process died", "signal 9")
    decided = settle_crash(a_task(at_most_once=True), a_spec(), cause, Random(1))
    assert (decided.event, decided.cause) == (Event.FAIL, Cause("outcome unknown", "signal 9"))


def test_a_death_of_a_task_whose_handler_nobody_knows_waits_by_the_default() -> None:
    decided = settle_crash(a_task(), None, CAUSE, Random(1))
    assert decided.event is Event.RETRY
    assert decided.wait is not None
    assert decided.wait <= timedelta(seconds=5)


def test_failed_charges_and_keeps_the_level() -> None:
    decided = settle_failure(a_task(failures=1, retry_level=1), CAUSE)
    assert (decided.event, decided.failures, decided.retry_level) == (Event.FAIL, 2, 1)


def test_charged_takes_the_wait_that_it_is_given() -> None:
    decided = charge_failure(a_task(), None, CAUSE, Random(1), after=timedelta(seconds=9))
    assert decided.wait == timedelta(seconds=9)


def test_the_tasks_own_policy_wins_over_its_handlers_and_that_over_the_default() -> None:
    assert policy_of(a_task(retry="fixed 9s"), a_spec()) == Fixed(timedelta(seconds=9))
    assert policy_of(a_task(), a_spec()) == WAITS
    assert policy_of(a_task(), None) == DEFAULT_POLICY


@pytest.mark.parametrize(
    "garbage", ["soon", "", "\x01", "fixed -1s", "exponential 0s x" + "9" * 400 + " cap 1h"]
)
def test_a_policy_written_by_hand_that_cannot_be_read_is_passed_over(garbage: str) -> None:
    assert policy_of(a_task(retry=garbage), a_spec()) == WAITS


@pytest.mark.parametrize(
    ("word", "task", "event", "failures"),
    [
        ("retry_free", {}, Event.RELEASE, 0),
        ("retry", {}, Event.RETRY, 1),
        ("retry", {"failures": 2}, Event.FAIL, 3),
        ("fail", {}, Event.FAIL, 1),
        ("retry_free", {"at_most_once": True}, Event.FAIL, 1),
    ],
)
def test_a_run_that_is_cut_off(word: str, task: dict, event: Event, failures: int) -> None:
    spec = a_spec(on_interrupt=Reaction(word))
    settlement = settle_interrupt(a_task(**task), spec, Random(1))
    assert (settlement.event, settlement.failures) == (event, failures)
    if task.get("at_most_once"):
        assert settlement.cause is not None
        assert settlement.cause.kind == "outcome unknown"


def test_a_run_of_a_name_that_is_not_known_here_is_released() -> None:
    assert settle_interrupt(a_task(), None, Random(1)).event is Event.RELEASE


class Order(BaseModel):
    order_id: int


def only_ctx(ctx): ...


def test_a_handler_gets_its_model_or_the_dict_itself() -> None:
    text = '{"order_id": 1}'
    typed = HandlerSpec("t", only_ctx, payload_type=PayloadType(Order))
    assert typed.payload(text) == Order(order_id=1)
    assert HandlerSpec("t", only_ctx).payload(text) == {"order_id": 1}


@pytest.mark.parametrize("name", ["delay", "apply_async", "s"])
def test_who_calls_a_handler_as_a_task_of_celery_is_told_what_to_call(name: str) -> None:
    handler = Handler(HandlerSpec("mail.send", only_ctx), only_ctx)
    with pytest.raises(AttributeError) as refused:
        getattr(handler, name)
    assert str(refused.value) == (
        f"mail.send is a handler, which has no {name}(). Create a task in your transaction: "
        "create_task(session, only_ctx, payload)."
    )
    assert not hasattr(handler, name)


def test_without_a_rule_there_is_no_reaction() -> None:
    assert HandlerSpec("t", only_ctx).reaction(ValueError()) is None


def test_a_rule_is_found_through_the_ancestry_nearest_first() -> None:
    spec = HandlerSpec(
        "t", only_ctx, on_error={OSError: Reaction.RETRY_FREE, ConnectionError: Reaction.FAIL}
    )
    assert spec.reaction(ConnectionResetError()) is Reaction.FAIL
    assert spec.reaction(FileNotFoundError()) is Reaction.RETRY_FREE
    assert spec.reaction(ValueError()) is None


@pytest.mark.parametrize("ending", [Fail, Cancel, Skip, Retry])
def test_an_ending_may_say_why(ending) -> None:
    assert (ending().reason, ending("because").reason) == ("", "because")
    assert str(ending("because")) == "because"


def test_an_ending_with_a_wait_reads_it_as_people_write_it() -> None:
    assert Retry().after is None
    assert Retry(after="90s").after.total_seconds() == 90
    assert Snooze("1.5h", "busy").after.total_seconds() == 5400
    assert Snooze(5).after.total_seconds() == 5


@pytest.mark.parametrize("make", [lambda: Snooze("soon"), lambda: Retry(after=-1)])
def test_an_ending_with_a_wait_that_is_none_is_a_value_error(make) -> None:
    with pytest.raises(ValueError, match=r"^after is .*(duration|outside)"):
        make()


@pytest.mark.parametrize(
    ("statement", "text", "names"),
    [
        ("CALL refresh_report(:day)", "CALL refresh_report(%(day)s)", ("day",)),
        ("SELECT :a::date, :b, :a", "SELECT %(a)s::date, %(b)s, %(a)s", ("a", "b")),
        ("SELECT :größe", "SELECT %(größe)s", ("größe",)),
        ("SELECT f(x := :x, y := 1)", "SELECT f(x := %(x)s, y := 1)", ("x",)),
        ("SELECT 1::int, '10:30', ':no', E'it\\':s', \":no\"", None, ()),
        ("SELECT $$:no$$, $q$ $$ :no $q$", None, ()),
        ("SELECT 1 -- :no 'open\n + :yes", "SELECT 1 -- :no 'open\n + %(yes)s", ("yes",)),
        ("/* ; :no */ SELECT 'it''s :no'", None, ()),
        ("SELECT 5 % 2, 'a%s'", "SELECT 5 %% 2, 'a%%s'", ()),
        ("  select 1 ;  -- done\n ; ", "select 1   -- done", ()),
        ("WITH x AS (SELECT 1) DELETE FROM a$b USING x", None, ()),
        ("SELECT a['x':'y'], a[ 1 : 2 ]", None, ()),
    ],
)
def test_a_colon_and_a_name_is_a_parameter(
    statement: str, text: str | None, names: tuple[str, ...]
) -> None:
    parsed = parse_statement(statement)
    assert (parsed.text, parsed.names) == (text or statement, names)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("", "is empty"),
        ("-- nothing", "is empty"),
        ("SELECT 1; SELECT 2", "is more than one statement"),
        ("SELECT 1; :x", "is more than one statement"),
        ("SELECT 1; (", "is more than one statement"),
        ("SELECT 1; 'x'", "is more than one statement"),
        ("SELECT $1", r"has the parameter \$1"),
        ("SELECT 'open", "has a ' that is not closed"),
        ('SELECT "open', 'has a " that is not closed'),
        ("SELECT $a$ open $b$", r"has a \$ that is not closed"),
        ("SELECT 1 /* open", r"has a /\* that is not closed"),
        ("SELECT 1 /* a /* b */ */", "has a comment in a comment"),
        ("COMMIT", "begins with COMMIT. Allowed: CALL, DELETE"),
        ("/* */ begin", "begins with BEGIN"),
        ("SET ROLE x", "begins with SET"),
        ("COPY t FROM STDIN", "begins with COPY"),
        ("TRUNCATE :table", "has parameters, which TRUNCATE cannot take"),
        (None, "is of type NoneType"),
    ],
)
def test_what_no_task_could_carry_out_is_refused(statement: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_statement(statement)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        *((None, None), ("x'; --", "x'; --"), (3, "3"), (1.5, "1.5"), (True, "true")),
        *(([1, "x"], '[1, "x"]'), ({"h": None}, '{"h": null}')),
    ],
)
def test_values_are_the_texts_that_the_database_takes(value: object, sent: str | None) -> None:
    assert parameter_texts({"a": value}) == {"a": sent}
