"""Retention: what is old enough goes, in transactions of its own, while others work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, Engine, make_url, text

from tasks_app import Settings, get_task
from tasks_app.pool import retention
from tasks_app.pool.connection.row_by_row import refusals
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.retention import partitions
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader import maintainer
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.leader.retention import Retention, preview_retention
from tests.factory import count, rows_of, run_sql
from tests.pool.database import DAY, NAME, NOON, ONE, drop_old_days, failed, finished, old_day
from tests.servers import named

LATER = "task_completed_p20200507"
DONE = "SELECT done_at FROM task_lease WHERE name = 'maintain'"


@pytest.fixture
def old(engine: Engine) -> Iterator[Engine]:
    """Two days that are over, with a task of each of two names, and a failure as old."""
    drop_old_days(engine)
    with engine.begin() as connection:
        for day in (DAY, DAY + ONE):
            old_day(connection, day)
            for name in ("mail", "order"):
                finished(connection, name, now=day + (NOON - DAY))
        failed(connection)
    yield engine
    drop_old_days(engine)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    yield made
    made.dispose()


Ages = Callable[..., Settings]


@pytest.fixture
def ages(database_url: str) -> Ages:
    return lambda **given: Settings(database_url=database_url, **given)


def names(engine: Engine) -> list[str]:
    """The days that are there, attached or not."""
    found = "SELECT relname FROM pg_class WHERE relname ~ '^task_completed_p2020[0-9]{4}$'"
    return sorted(name for (name,) in rows_of(engine, found))


def test_old_days_are_dropped_errors_stay(old: Engine, database: Database, ages: Ages) -> None:
    pruned = Retention(ages(), database).run()
    assert pruned.days == [NAME, LATER]
    assert names(old) == []
    assert (pruned.completed, pruned.errors, pruned.more) == (0, 0, False)
    with old.connect() as connection:
        assert count(connection, "task_completed") == 0
        assert count(connection, "task_error") == 1
        assert count(connection, "task_attempt") == 1  # the failure's own


def test_no_row_is_deleted_with_one_age(old: Engine, database: Database, ages: Ages) -> None:
    with old.begin() as connection:
        for name in (NAME, LATER):
            forbid_deletes(connection, name)
    assert Retention(ages(), database).run().days == [NAME, LATER]


def test_for_ever_keeps_all_of_it(old: Engine, database: Database, ages: Ages) -> None:
    pruned = Retention(ages(keep_completed="forever"), database).run()
    assert pruned.days == []
    assert names(old) == [NAME, LATER]


def test_shorter_ages_go_by_key_before_days(old: Engine, database: Database, ages: Ages) -> None:
    keep = ages(keep_completed="30d,order=forever,mail=7d")
    first = Retention(keep, database).run()
    second = Retention(keep, database).run()
    assert (first.days, first.completed, second.completed) == ([], 2, 0)
    with old.connect() as connection:
        left = connection.execute(text("SELECT DISTINCT name FROM task_completed")).scalars()
        assert left.all() == ["order"]


def test_a_day_goes_when_its_end_is_too_old(old: Engine, database: Database, ages: Ages) -> None:
    with old.begin() as connection:
        (midnight,) = connection.execute(
            text("SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'")
        ).one()
        young, just = (add_day(connection, midnight - n * ONE) for n in (30, 31))
    pruned = Retention(ages(), database).run()
    run_sql(old, f"DROP TABLE {young}")
    assert pruned.days == [NAME, LATER, just]


def add_day(connection: Connection, day: datetime) -> str:
    return old_day(connection, day.astimezone(UTC)).name


def test_errors_go_by_age_where_that_is_wished(old: Engine, database: Database, ages: Ages) -> None:
    pruned = Retention(ages(keep_errors="365d"), database).run()
    assert pruned.errors == 1


def test_strays_of_the_default_go_by_age(old: Engine, database: Database, ages: Ages) -> None:
    with old.begin() as connection:
        stray = finished(connection, now=NOON - 100 * ONE)
    pruned = Retention(ages(), database).run()
    assert pruned.completed == 1
    with old.connect() as connection:
        assert get_task(connection, stray) is None


def test_a_locked_day_stays_others_go(old: Engine, database: Database, ages: Ages) -> None:
    retention = Retention(ages(), database)
    with old.begin() as connection:
        connection.execute(text(f"SELECT count(*) FROM {NAME}"))
        held = retention.run()
    free = retention.run()
    assert (held.in_use, held.days) == ([NAME], [LATER])
    assert (free.in_use, free.days) == ([], [NAME])


def test_it_gives_up_after_three_refusals(old: Engine, database: Database, ages: Ages) -> None:
    with old.begin() as connection:
        for n in range(2, 6):
            old_day(connection, DAY + n * ONE)
    with old.begin() as connection:
        connection.execute(text("LOCK TABLE ONLY task_completed IN ROW EXCLUSIVE MODE"))
        pruned = Retention(ages(), database).run()
    assert len(pruned.in_use) == 3
    assert len(names(old)) == 6


def test_time_is_up_after_any_step_and_somebody_else_goes_on(
    old: Engine, database: Database, ages: Ages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run does one step, and knows nothing of the others."""
    monkeypatch.setattr(retention, "LOOKED_AT", 1)
    days, runs = [], 0
    while True:
        pruned = Retention(ages(), database).run(0)
        days += pruned.days
        runs += 1
        with old.connect() as connection:
            if NAME not in names(old) and LATER not in names(old):
                break
        assert runs < 30

    assert days == [NAME, LATER]
    assert runs >= 2 * 4
    with old.connect() as connection:
        assert count(connection, "task_attempt") == 1


def test_thinning_is_resumed_where_the_last_one_ended(
    old: Engine, database: Database, ages: Ages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOOKED_AT", 1)
    keep = ages(keep_completed="forever,mail=1d")
    gone = [Retention(keep, database).run(0).completed for _ in range(8)]
    assert sum(gone) == 2
    assert Retention(keep, database).run().completed == 0


def test_what_would_go_is_told_and_nothing_goes(old: Engine, ages: Ages) -> None:
    keep = ages(keep_completed="forever,mail=7d", keep_errors="365d")
    with old.connect() as connection:
        whole = [(d.what, d.rows, d.how) for d in preview_retention(connection, ages())]
        parts = [(d.what, d.rows, d.how, d.kept) for d in preview_retention(connection, keep)]
        sizes = [d.bytes for d in preview_retention(connection, ages())]

    assert whole == [(NAME, 2, "dropped"), (LATER, 2, "dropped")]
    assert parts == [
        (f"mail in {NAME}", 1, "deleted", "7d"),
        (f"mail in {LATER}", 1, "deleted", "7d"),
        ("task_error", 1, "deleted", "365d"),
    ]
    assert all(size > 8_000 for size in sizes)
    assert names(old) == [NAME, LATER]


def test_who_does_not_own_the_tables_says_so_once_and_leaves_the_days_alone(
    old: Engine,
    ages: Ages,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand = named("hand")
    with old.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {hand} LOGIN PASSWORD 'p'")
        connection.exec_driver_sql(grants_sql(RoleKind.WORKER, hand))
    url = make_url(database_url).set(username=hand, password="p")
    database = Database(url.render_as_string(hide_password=False))
    retention = Retention(ages(keep_errors="365d"), database)
    monkeypatch.setattr(logging.getLogger("tasks_app.runtime.leader.retention"), "propagate", True)
    caplog.set_level(logging.WARNING)

    try:
        first, second = retention.run(), retention.run()
    finally:
        database.dispose()
        run_sql(old, f"DROP OWNED BY {hand}")
        run_sql(old, f"DROP ROLE {hand}")

    assert first.not_ours
    assert second.not_ours
    assert (first.days, first.errors) == ([], 1)
    assert names(old) == [NAME, LATER]
    assert len([r for r in caplog.records if "does not own" in r.message]) == 1


@pytest.mark.usefixtures("maintenance_due")
class TestMaintenance:
    """Retention is a part of it."""

    @pytest.fixture(autouse=True)
    def _patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maintainer, "PRUNE_FOR_S", 60)

    def test_it_prunes(self, old: Engine, database: Database, ages: Ages) -> None:
        Maintainer(database, settings=ages()).run_if_due()
        assert names(old) == []

    def test_a_list_with_a_row_that_is_refused_stops_nothing_behind_it(
        self, old: Engine, database: Database, ages: Ages
    ) -> None:
        run_sql(
            old,
            """
                INSERT INTO task_lock (resource, used_at) VALUES ('r', '2020-01-01Z');
                INSERT INTO task_import VALUES (gen_random_uuid(), 1, '2020-01-01Z');
                CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
                CREATE TRIGGER never BEFORE DELETE ON task_lock
                    FOR EACH ROW EXECUTE FUNCTION never()
            """,
        )
        try:
            Maintainer(database, settings=ages()).run_if_due()
        finally:
            with old.begin() as connection:
                told = refusals(connection)
                connection.exec_driver_sql("DROP FUNCTION never CASCADE")

        assert [(r.what, r.rows) for r in told] == [("pruning of lists", "locks")]
        with old.connect() as connection:
            assert (count(connection, "task_lock"), count(connection, "task_import")) == (1, 0)
        assert names(old) == []

    def test_while_there_is_more_it_goes_on_at_the_next_look(
        self, old: Engine, database: Database, ages: Ages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(maintainer, "PRUNE_FOR_S", 0)
        monkeypatch.setattr(maintainer, "LOOK_EVERY_S", 0)
        mine = Maintainer(database, settings=ages())
        looks = 0
        while done_at(old) is None:
            mine.run_if_due()
            looks += 1
            assert looks < 30
        assert looks > 3
        assert names(old) == []

    def test_a_day_in_use_is_no_failure_and_is_tried_again_soon(
        self, old: Engine, database: Database, ages: Ages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(maintainer, "AGAIN_AFTER_S", 0)
        mine = Maintainer(database, settings=ages())
        with old.begin() as connection:
            connection.execute(text(f"SELECT count(*) FROM {NAME}"))
            mine.run_if_due()
            held = done_at(old)
        mine.run_if_due()
        assert held is None
        assert done_at(old) is not None
        assert names(old) == []


def done_at(engine: Engine) -> object:
    return run_sql(engine, DONE)


def forbid_deletes(connection, table: str) -> None:
    """Whoever deletes a row of it fails."""
    connection.execute(
        text("""
            CREATE OR REPLACE FUNCTION pg_temp.no_delete() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'a row was deleted'; END $$
        """)
    )
    connection.execute(
        text(f"""
            CREATE TRIGGER no_delete BEFORE DELETE ON {table}
            FOR EACH ROW EXECUTE FUNCTION pg_temp.no_delete()
        """)
    )


def test_current_partitions_are_not_touched(old: Engine, database: Database, ages: Ages) -> None:
    with old.connect() as connection:
        before = [day.name for day in partitions(connection)[0] if day.name > LATER]
    Retention(ages(keep_completed="1d"), database).run()
    with old.connect() as connection:
        assert [day.name for day in partitions(connection)[0]] == before
