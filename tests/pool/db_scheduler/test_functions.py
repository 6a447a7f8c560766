"""Each function of the database does what its actor in Python does; both at once make one task."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, text

from tasks_app.domain.config.settings import Settings
from tasks_app.pool import retention
from tasks_app.pool.connection.row_by_row import refusals
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.db_scheduler.functions import Installed
from tasks_app.pool.dispatch.set_aside import sweep_all
from tasks_app.pool.retention import partitions
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.runtime.db.database import Database
from tests.pool.connection.test_row_by_row import POISON

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SETTINGS = Settings()


def _moved(engine: Engine, rows: str, move: Any) -> list[list[tuple]]:
    """What is left in all pools, the history and the counters; ids in the order of making."""
    with engine.connect() as connection:
        connection.execute(text(rows))
        move(connection)
        found = [
            [tuple(row) for row in connection.execute(text(statement))]
            for statement in (
                """SELECT pool, state, name, attempt, failures, crashes, error FROM task_all
                    ORDER BY name""",
                "SELECT event, kind, message, fingerprint FROM task_attempt ORDER BY message",
                """SELECT name, queue, outcome, sum(number) FROM task_count_part
                    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
            )
        ]
        connection.rollback()
    return found


_RUNNING = """
    INSERT INTO task_pending (name, state, attempt, crashes, max_attempts, at_most_once, owner,
        lease_token, lease_until, started_at, cancel_requested_at)
    SELECT 'r' || n, 'RUNNING', 5, CASE n WHEN 2 THEN 4 ELSE 0 END, 3, n = 3, 'gone',
        gen_random_uuid(), now() - CASE n WHEN 5 THEN interval '-1 hour' ELSE '1 hour' END,
        now() - interval '2 hours', CASE n WHEN 4 THEN now() END
    FROM generate_series(1, 5) AS n
"""


def test_the_function_rescues_what_the_rescuer_rescues(database: Database, engine: Engine) -> None:
    python = _moved(
        engine,
        _RUNNING,
        lambda c: rescue_expired(c, lease=SETTINGS.lease, max_crashes=SETTINGS.max_crashes),
    )
    # An hour from now the server, which may have just started, is old enough.
    by_function = _moved(
        engine, _RUNNING, lambda c: c.execute(text("SELECT task_rescue_expired(now() + '9 min')"))
    )

    assert by_function == python
    assert sorted(row[1] for row in python[0]) == [
        *("CANCELLED", "FAILED", "FAILED", "PENDING", "RUNNING")
    ]


def test_a_row_that_is_refused_stops_none_of_its_functions(
    database: Database, engine: Engine
) -> None:
    barred = "INSERT INTO task_pending (name, enabled) SELECT 'r' || n, false FROM generate_series"
    for rows, call in (
        (_RUNNING, "SELECT task_rescue_expired(now() + '9 min')"),
        (f"{barred}(1, 4) AS n", "SELECT task_sweep()"),
    ):
        moved: list[object] = []

        def refuse(connection: Connection, call: str = call, moved: list = moved) -> None:
            statement = POISON.format(id="(SELECT min(id) FROM task_pending)", state="23514",
                                      table="task_pending").replace(":=", r"\:=")  # fmt: skip
            connection.execute(text(statement))
            moved += [connection.execute(text(call)).scalar()]
            first = text("SELECT CAST(min(id) AS text) FROM task_pending")
            (told,) = refusals(connection)
            moved += [told.rows == connection.execute(first).scalar(), told.why]

        _moved(engine, rows, refuse)
        assert moved == [3, True, "SQLSTATE 23514"]


def test_a_lease_is_over_for_one_renewal_before_the_database_rescues(
    database: Database, engine: Engine
) -> None:
    rows = _RUNNING.replace("'1 hour' END", "'-51 s' END")
    asked: list[int] = []
    for at in ("now() + interval '60 s'", "now() + interval '62 s'"):
        _moved(engine, rows, lambda c, at=at: asked.append(
            c.execute(text(f"SELECT task_rescue_expired({at})")).scalar()
        ))  # fmt: skip
    assert asked == [0, 4]


def test_the_function_sweeps_what_the_sweeper_sweeps(database: Database, engine: Engine) -> None:
    rows = """
        INSERT INTO task_pending (name, enabled, expires_at)
        VALUES ('a', false, NULL), ('b', true, now() - interval '1 s'), ('c', true, NULL)
    """
    python = _moved(engine, rows, lambda c: sweep_all(c, 500))

    assert _moved(engine, rows, lambda c: c.execute(text("SELECT task_sweep()"))) == python
    assert [row[1] for row in python[0]] == ["SKIPPED", "EXPIRED", "PENDING"]


def test_the_function_makes_and_drops_days_one_step_a_call(
    database: Database, engine: Engine
) -> None:
    with engine.connect() as connection:
        today = connection.execute(text("SELECT (now() AT TIME ZONE 'UTC')::date")).scalar_one()
        at = datetime(today.year, today.month, today.day, 12, tzinfo=UTC) + timedelta(days=31)
        steps = []
        while step := connection.execute(
            text("SELECT task_maintain_partitions(:at)"), {"at": at}
        ).scalar():
            steps.append(step)
        found, _ = partitions(connection, now=at)
        connection.rollback()

    assert len([step for step in steps if step.startswith("made ")]) == 15
    oldest = f"task_completed_p{today:%Y%m%d}"
    assert steps[-2:] == [f"detached {oldest}", f"dropped {oldest}"]
    assert oldest not in [day.name for day in found]
    assert found[-1].day.date() == (at + timedelta(days=14)).date()


def test_a_day_that_python_detached_is_dropped_by_the_function(
    database: Database, engine: Engine
) -> None:
    with engine.connect() as connection:
        found, _ = partitions(connection)
        retention.detach_partition(connection, found[0])
        at = found[0].day + timedelta(days=31, hours=12)
        steps: list[str] = []
        while not steps or steps[-1].startswith("made "):
            steps.append(
                connection.execute(
                    text("SELECT task_maintain_partitions(:at)"), {"at": at}
                ).scalar_one()
            )
        connection.rollback()

    assert steps[-1] == f"dropped {found[0].name}"


def test_status_tells_functions_of_other_settings(database: Database, engine: Engine) -> None:
    with engine.begin() as connection:
        assert functions.installed(connection, SETTINGS) is Installed.YES
        other = SETTINGS.model_copy(update={"max_crashes": 9})
        assert functions.installed(connection, other) is Installed.OTHERWISE
        assert functions.drop(connection) == 5
        assert functions.installed(connection, SETTINGS) is Installed.NO


def test_what_stands_is_not_made_anew(database: Database, engine: Engine) -> None:
    """A job that runs meanwhile finds what it calls; one of other settings is made anew."""
    query = text("SELECT proname, CAST(oid AS bigint) FROM pg_proc WHERE proname LIKE 'task\\_%'")

    def standing() -> dict[str, int]:
        with engine.connect() as connection:
            return {row.proname: row.oid for row in connection.execute(query)}

    before = standing()
    with engine.begin() as connection:
        functions.create(connection, SETTINGS)
    assert standing() == before
    with engine.begin() as connection:
        functions.create(connection, Settings(lease=timedelta(seconds=99)))
    changed = {name for name, oid in standing().items() if before[name] != oid}
    assert changed == {"task_rescue_expired"}
