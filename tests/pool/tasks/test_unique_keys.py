"""Unique keys: for how long each scope takes one, and what each policy makes of a taken one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidTaskError, UniqueKeyTakenError
from tasks_app.domain.operations import BulkAction
from tasks_app.domain.tasks.records import CreateOutcome, TaskId, TaskRow
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks import unique_keys
from tasks_app.pool.tasks.amend import amend
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.create import CHUNK, create_many, create_one
from tasks_app.pool.tasks.requeue import requeue
from tests.factory import claimed_task, count, ending, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
DEFAULT = ("queued_or_running", "until_terminal")
LASTING = ("for_period 1h", "forever")
SCOPES = ("queued", *DEFAULT, *LASTING)


def keyed(scope: str | None, payload=None, key: str = "k", name: str = "t", **options) -> TaskRow:
    options = {"unique_key": key, "unique_scope": scope, **options}
    return validate_task(NewTask(name, payload, options), None, 65536)


def made(connection: Connection, scope: str | None, payload=None, now=NOON, **options) -> TaskId:
    return create_one(connection, keyed(scope, payload, **options), now=now)


def run(connection: Connection, task_id: int, event: Event | None = None, **changes) -> None:
    task = claimed_task(connection, task_id, now=NOON)
    if event is not None:
        settlement = ending(task, event, cause=Cause("E", "no"), **changes)
        settle_one(connection, settlement, now=NOON)


class TestWhatCountsAsTaken:
    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_a_pending_task_has_its_key(self, connection: Connection, scope: str | None) -> None:
        first = made(connection, scope)
        again = made(connection, scope)
        assert (first.created, first.outcome) == (True, CreateOutcome.CREATED)
        assert (again, again.created, again.outcome) == (first, False, CreateOutcome.EXISTING)
        assert count(connection) == 1

    @pytest.mark.parametrize("scope", SCOPES)
    def test_a_running_one_has_it_if_not_queued(self, connection: Connection, scope: str) -> None:
        first = made(connection, scope)
        run(connection, first)
        assert made(connection, scope).created is (scope == "queued")

    @pytest.mark.parametrize("scope", SCOPES)
    def test_one_that_waits_for_its_retry_has_it(self, connection: Connection, scope: str) -> None:
        first = made(connection, scope)
        run(connection, first, Event.RETRY, wait=HOUR, failures=1)
        assert made(connection, scope) == first

    @pytest.mark.parametrize("end", [Event.SUCCEED, Event.FAIL])
    @pytest.mark.parametrize("scope", SCOPES)
    def test_one_that_is_over_may_have_it(
        self, connection: Connection, scope: str, end: Event
    ) -> None:
        first = made(connection, scope)
        run(connection, first, end)
        again = made(connection, scope)
        assert again.created is (scope not in LASTING)
        assert again.created or again == first

    @pytest.mark.parametrize("scope", SCOPES)
    def test_one_that_was_cancelled_likewise(self, connection: Connection, scope: str) -> None:
        first = made(connection, scope)
        cancel(connection, first)
        assert made(connection, scope).created is (scope not in LASTING)

    @pytest.mark.parametrize("scope", SCOPES)
    def test_a_requeued_task_has_its_key_again(self, connection: Connection, scope: str) -> None:
        first = made(connection, scope)
        run(connection, first, Event.FAIL)
        requeue(connection, first, now=NOON)
        assert made(connection, scope) == first

    def test_a_period_ends_while_its_task_waits(self, connection: Connection) -> None:
        first = made(connection, "for_period 1h")
        assert made(connection, "for_period 1h", now=NOON + HOUR - timedelta(seconds=1)) == first
        second = made(connection, "for_period 1h", now=NOON + HOUR)
        assert second.created
        assert made(connection, "for_period 1h", now=NOON + HOUR) == second

    def test_a_period_without_now_is_counted_from_the_create(self, connection: Connection) -> None:
        made(connection, "for_period 90", now=None)
        left = connection.execute(text("SELECT until - statement_timestamp() FROM task_key"))
        assert timedelta(seconds=60) < left.scalar_one() <= timedelta(seconds=90)

    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_a_key_belongs_to_its_name(self, connection: Connection, scope: str | None) -> None:
        made(connection, scope)
        assert made(connection, scope, name="other").created
        assert made(connection, scope, key="other").created

    @pytest.mark.parametrize("scope", ["queued", *LASTING])
    def test_the_scope_says_how_long_it_is_taken(self, connection: Connection, scope: str) -> None:
        first = made(connection, "forever")
        run(connection, first, Event.SUCCEED)
        assert made(connection, scope) == first

    @pytest.mark.parametrize("scope", SCOPES)
    def test_a_rollback_gives_the_key_back(self, connection: Connection, scope: str) -> None:
        savepoint = connection.begin_nested()
        made(connection, scope)
        savepoint.rollback()
        assert made(connection, scope).created

    @pytest.mark.parametrize("scope", ["queued", *LASTING])
    def test_the_task_itself_is_like_any_other(self, connection: Connection, scope: str) -> None:
        options = {"queue": "q", "priority": 2, "biz_key": "b", "delay": 90, "headers": {"a": 1}}
        options["limit_key"] = ["bank:acme", "tenant:7"]
        plain = create_one(
            connection, validate_task(NewTask("t", {"n": 1}, options), None, 65536), now=NOON
        )
        task_id = made(connection, scope, {"n": 1}, **options)
        first, second = (row_of(connection, i)._asdict() for i in (plain, task_id))
        different = {k for k in first if first[k] != second[k]}
        assert different == {"id", "idempotency_key"}


class TestPolicies:
    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_raise_names_the_holder_only(self, connection: Connection, scope: str | None) -> None:
        first = made(connection, scope)
        with pytest.raises(UniqueKeyTakenError, match=f"'k' of t is taken by task {first}") as e:
            made(connection, scope, on_conflict="raise")
        assert (e.value.holder, e.value.name, e.value.unique_key) == (first, "t", "k")
        assert count(connection) == 1

    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_raise_creates_if_it_is_free(self, connection: Connection, scope: str | None) -> None:
        assert made(connection, scope, on_conflict="raise").created

    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_replace_gives_only_the_payload(
        self, connection: Connection, scope: str | None
    ) -> None:
        first = made(connection, scope, {"n": 1})
        before = row_of(connection, first)._asdict()

        again = made(
            connection, scope, {"n": 2}, on_conflict="replace_payload", delay=60, priority=1
        )

        assert (again, again.created, again.outcome) == (first, False, CreateOutcome.REPLACED)
        assert row_of(connection, first)._asdict() == {
            **before,
            "payload": {"n": 2},
            "changed_at": NOON,
        }
        assert count(connection) == 1

    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_reschedule_moves_only_the_date(
        self, connection: Connection, scope: str | None
    ) -> None:
        first = made(connection, scope, {"n": 1}, delay=60)
        connection.execute(text("UPDATE task_pending SET parked = 'why', scan_at = due_at + '9s'"))
        before = row_of(connection, first)._asdict()
        again = made(connection, scope, {"n": 2}, on_conflict="reschedule", delay=90)
        assert (again, again.created, again.outcome) == (first, False, CreateOutcome.RESCHEDULED)
        due = NOON + timedelta(seconds=90)
        changed = {"due_at": due, "scan_at": due, "parked": None, "changed_at": NOON}
        assert row_of(connection, first)._asdict() == {**before, **changed}

    def test_reschedule_goes_by_run_at_too_and_may_be_sooner(self, connection: Connection) -> None:
        first = made(connection, None, delay="2h")
        made(connection, None, on_conflict="reschedule", run_at=NOON + HOUR)
        assert row_of(connection, first).due_at == NOON + HOUR

    @pytest.mark.parametrize("scope", [None, "queued", "until_terminal", "forever"])
    def test_a_steady_stream_waits_no_longer(
        self, connection: Connection, scope: str | None
    ) -> None:
        debounce = {"on_conflict": "reschedule", "delay": "5s", "max_wait": "12s"}
        dues = []
        for second in (0, 4, 8, 11):
            now = NOON + timedelta(seconds=second)
            task_id = made(connection, scope, now=now, **debounce)
            row = row_of(connection, task_id)
            assert row.scan_at == row.due_at
            dues.append((row.due_at - NOON).total_seconds())
        assert dues == [5, 9, 12, 12]
        assert count(connection) == 1

    def test_an_overdue_task_keeps_its_place(self, connection: Connection) -> None:
        """A request that makes it due now would send it behind all that are due."""
        debounce = {"on_conflict": "reschedule", "delay": "5s", "max_wait": "12s"}
        first = made(connection, None, **debounce)
        made(connection, None, now=NOON + HOUR, **debounce)
        assert row_of(connection, first).due_at == NOON + timedelta(seconds=12)

    def test_the_longest_wait_bounds_an_instant_too(self, connection: Connection) -> None:
        first = made(connection, None)
        made(connection, None, on_conflict="reschedule", run_at=NOON + HOUR, max_wait="1m")
        assert row_of(connection, first).due_at == NOON + timedelta(minutes=1)

    @pytest.mark.parametrize(("delay", "due"), [("2h", HOUR), ("5m", timedelta(minutes=5))])
    def test_a_retry_may_come_sooner_but_no_later_where_a_longest_wait_is_given(
        self, connection: Connection, delay: str, due: timedelta
    ) -> None:
        """Else a steady stream would keep it from its retry; its creation may be long ago."""
        first = made(connection, None)
        run(connection, first, Event.RETRY, wait=HOUR, failures=1)
        made(connection, None, on_conflict="reschedule", delay=delay, max_wait="3h")
        assert row_of(connection, first).due_at == NOON + due

    @pytest.mark.parametrize("retries", [False, True])
    def test_the_longest_wait_bounds_held_ones(
        self, connection: Connection, *, retries: bool
    ) -> None:
        """Its ``due_at`` lies in the year 9899, and is no bound."""
        first = made(connection, None)
        if retries:
            run(connection, first, Event.RETRY, wait=MINUTE, failures=1)
        amend(connection, BulkAction.HOLD, [first], now=NOON)
        made(connection, None, on_conflict="reschedule", run_at=NOON + HOUR, max_wait="1m")
        amend(connection, BulkAction.RELEASE, [first], now=NOON)
        assert row_of(connection, first).due_at == NOON + MINUTE

    @pytest.mark.parametrize("policy", ["replace_payload", "reschedule"])
    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_what_runs_stays(self, connection: Connection, scope: str | None, policy: str) -> None:
        first = made(connection, scope, {"n": 1})
        run(connection, first)
        before = row_of(connection, first)
        again = made(connection, scope, {"n": 2}, on_conflict=policy, delay=60)
        assert row_of(connection, first) == before
        if scope == "queued":
            assert (again.created, row_of(connection, again).payload) == (True, {"n": 2})
        else:
            assert (again, again.outcome) == (first, CreateOutcome.EXISTING)

    @pytest.mark.parametrize("policy", ["replace_payload", "reschedule"])
    @pytest.mark.parametrize("scope", LASTING)
    def test_what_is_over_is_left(self, connection: Connection, scope: str, policy: str) -> None:
        first = made(connection, scope, {"n": 1})
        run(connection, first, Event.SUCCEED)
        again = made(connection, scope, {"n": 2}, on_conflict=policy)
        assert (again, again.outcome) == (first, CreateOutcome.EXISTING)
        assert row_of(connection, first, "task_completed").payload == {"n": 1}


class TestMany:
    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_of_duplicates_the_first_is_new(
        self, connection: Connection, scope: str | None
    ) -> None:
        rows = [keyed(scope, {"n": n}, key) for n, key in enumerate("abacab")]
        ids = create_many(connection, rows)
        assert [i.created for i in ids] == [True, True, False, True, False, False]
        assert ids[2] == ids[4] == ids[0]
        assert ids[5] == ids[1]
        assert row_of(connection, ids[0]).payload == {"n": 0}

    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_of_duplicates_the_last_may_run(
        self, connection: Connection, scope: str | None
    ) -> None:
        rows = [keyed(scope, {"n": n}, on_conflict="replace_payload") for n in range(3)]
        ids = create_many(connection, rows)
        assert [i.outcome for i in ids] == ["created", "replaced", "replaced"]
        assert row_of(connection, ids[0]).payload == {"n": 2}

    @pytest.mark.parametrize("scope", [None, *SCOPES])
    def test_one_that_raises_leaves_nothing_of_its_call_and_all_of_the_transaction(
        self, connection: Connection, scope: str | None
    ) -> None:
        holder = made(connection, scope, {"n": 1}, key="m")
        rows = [
            validate_task(NewTask("plain"), None, 65536),
            keyed(scope, key="a"),
            keyed(scope, {"n": 2}, key="m", on_conflict="replace_payload"),
            keyed(scope, key="m", on_conflict="raise"),
            keyed("forever", key="z"),
        ]

        with pytest.raises(UniqueKeyTakenError, match=f"task {holder}"):
            create_many(connection, rows, now=NOON)

        assert count(connection) == 1
        assert row_of(connection, holder).payload == {"n": 1}
        assert made(connection, scope, key="a").created
        assert made(connection, "forever", key="z").created

    def test_all_kinds_in_one_call(self, connection: Connection) -> None:
        for scope in SCOPES:
            run(connection, made(connection, scope, key=f"{scope} ran"), Event.SUCCEED)
        rows = [keyed(scope, {"n": 1}, f"{scope}{end}") for scope in SCOPES for end in ("", " ran")]
        rows.insert(3, validate_task(NewTask("plain", {"n": 1}), None, 65536))

        ids = create_many(connection, rows, now=NOON)

        known = {row.unique_key: task_id for row, task_id in zip(rows, ids, strict=True)}
        old = [key for key, task_id in known.items() if not task_id.created]
        assert old == [f"{scope} ran" for scope in LASTING]
        new = [task_id for task_id in ids if task_id.created]
        assert new == sorted(new)
        assert all(row_of(connection, i).payload == {"n": 1} for i in new)

    def test_more_keys_than_one_statement_holds(self, connection: Connection) -> None:
        keys = CHUNK + 8
        rows = [keyed("forever", {"n": n}, f"k{n % keys}") for n in range(keys + 12)]
        ids = create_many(connection, rows)
        assert [i.created for i in ids] == [True] * keys + [False] * 12
        assert ids[keys:] == ids[:12]
        made = text("SELECT array_agg(payload['n']::int ORDER BY id) FROM task_pending")
        assert connection.execute(made).scalar() == list(range(keys))


class TestPrune:
    def test_what_nobody_has_any_more_goes_and_the_rest_stays(self, connection: Connection) -> None:
        for end in (None, Event.SUCCEED):
            for scope in ("queued", "for_period 1h", "for_period 2h", "forever"):
                task_id = made(connection, scope, key=f"{scope} {end}")
                if end:
                    run(connection, task_id, end)
        run(connection, made(connection, "queued", key="runs"))

        assert unique_keys.prune_keys(connection, 100, now=NOON + HOUR) == 3

        left = connection.execute(text("SELECT unique_key FROM task_key ORDER BY 1")).scalars()
        assert set(left) == {
            *("queued None", "runs", "for_period 2h None", "for_period 2h succeed"),
            *("forever None", "forever succeed"),
        }

    def test_no_more_than_was_asked_for(self, connection: Connection) -> None:
        create_many(connection, [keyed("for_period 1s", key=str(n)) for n in range(5)], now=NOON)
        assert unique_keys.prune_keys(connection, 3, now=NOON + HOUR) == 3
        assert unique_keys.prune_keys(connection, 3, now=NOON + HOUR) == 2


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"unique_scope": "queued"}, "options.unique_key"),
        ({"on_conflict": "raise"}, "options.unique_key"),
        ({"unique_key": "k", "unique_scope": "always"}, "options.unique_scope"),
        ({"unique_key": "k", "unique_scope": 60}, "options.unique_scope"),
        ({"unique_key": "k", "unique_scope": "for_period"}, "options.unique_scope"),
        ({"unique_key": "k", "unique_scope": "for_period 0"}, "options.unique_scope"),
        ({"unique_key": "k", "unique_scope": "for_period x"}, "options.unique_scope"),
        ({"unique_key": "k", "unique_scope": "for_period 20y"}, "options.unique_scope"),
        ({"unique_key": "k", "unique_scope": "forever 1h"}, "options.unique_scope"),
        ({"unique_key": "k", "on_conflict": "explode"}, "options.on_conflict"),
        ({"unique_key": "k", "on_conflict": True}, "options.on_conflict"),
        ({"unique_key": "k", "max_wait": "1m"}, "options.max_wait"),
        ({"unique_key": "k", "max_wait": "1m", "on_conflict": "raise"}, "options.max_wait"),
        ({"max_wait": "1m", "on_conflict": "reschedule"}, "options.unique_key"),
        *(
            (
                {"unique_key": "k", "on_conflict": "reschedule", "delay": "5s", "max_wait": wrong},
                "options.max_wait",
            )
            for wrong in ("soon", 0, -1, "4s")
        ),
    ],
)
def test_nonsense_is_refused_with_its_path(options: dict, path: str) -> None:
    with pytest.raises(InvalidTaskError) as refused:
        validate_task(NewTask("t", None, options), None, 65536)
    assert refused.value.path == path


def test_hostile_keys_are_values_like_any_other(connection: Connection) -> None:
    for scope in SCOPES:
        key = f"'; DROP TABLE task_key; --%s %(name)s {scope}"
        first = made(connection, scope, key=key)
        assert made(connection, scope, key=key, on_conflict="replace_payload") == first
        assert create_many(connection, [keyed(scope, key=key)], now=NOON) == [first]
