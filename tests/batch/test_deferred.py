"""What a COMMIT would refuse is refused before it, as a statement would be; and what it refuses
all the same is rolled back and tried again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.domain.batch.records import BatchStatus
from tests.batch.yard import Yard

pytestmark = pytest.mark.test_all

NOTE = "INSERT INTO child (id, parent) SELECT i, i FROM unnest(CAST(:ids AS bigint[])) AS i"


@pytest.fixture
def family(yard: Yard) -> Iterator[Yard]:
    """Rows whose parents are looked for at the COMMIT; 7 and 13 have none."""
    yard.rows(20)
    yard.sql("DROP TABLE IF EXISTS child, parent")
    yard.sql("CREATE TABLE parent (id bigint PRIMARY KEY)")
    yard.sql("INSERT INTO parent SELECT i FROM generate_series(1, 20) i WHERE i NOT IN (7, 13)")
    yard.sql("""
        CREATE TABLE child (id bigint PRIMARY KEY,
            parent bigint REFERENCES parent DEFERRABLE INITIALLY DEFERRED)""")
    yield yard
    yard.sql("DROP TABLE child, parent")


@pytest.fixture
def stumbles(yard: Yard) -> Iterator[Yard]:
    """A trigger that stumbles at the first three COMMITs, as a conflict does; and never before."""
    yard.rows(20)
    yard.sql("CREATE SEQUENCE stumbles")  # knows of no rollback
    yard.sql("""
        CREATE FUNCTION stumble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('stumbles') <= 3 THEN
                RAISE EXCEPTION 'not now' USING ERRCODE = '40001';
            END IF;
            RETURN NULL;
        END $$""")
    yield yard
    yard.sql("DROP FUNCTION stumble CASCADE")
    yard.sql("DROP SEQUENCE stumbles")


def note(ctx: Any, rows: Any, through: str = "connection") -> None:
    """A chunk handler: each row is done, and has a child."""
    ids = {"ids": [row.id for row in rows]}
    getattr(ctx, through).execute(text(NOTE), ids)


@pytest.mark.parametrize("through", ["connection", "session"])
@pytest.mark.parametrize("commit", ["every", "end"])
@pytest.mark.parametrize("rows", [10, 50])
def test_rows_that_a_commit_would_refuse_are_left_out(
    family: Yard, through: str, commit: str, rows: int
) -> None:
    """The last chunk commits with the outcome: it has to know before."""
    step = family.step(
        lambda ctx, rows: note(ctx, rows, through),
        cuts=(),
        skip_limit=5,
        max_attempts=1,
        commit=commit,
        commit_every=rows,
    )

    view = family.run(family.job(step))

    assert view.batch.status is BatchStatus.COMPLETED
    assert family.sql("SELECT array_agg(id ORDER BY id) FROM child") == [
        i for i in range(1, 21) if i not in (7, 13)
    ]
    assert view.tallies["step"].counts[:3] == (20, 18, 2)
    assert family.sql("SELECT array_agg(key ORDER BY key) FROM task_batch_skip") == ["13", "7"]


def test_a_row_that_a_commit_would_refuse_is_named(family: Yard) -> None:
    view = family.run(family.job(family.step(note, cuts=(), skip_limit=1, max_attempts=1)))

    assert view.batch.status is BatchStatus.FAILED
    error = str(family.parts(view.batch.id)[0].error)
    assert "Row 13 of partition 1 fails (ForeignKeyViolation" in error


def test_rows_may_be_written_before_what_they_hang_on(family: Yard) -> None:
    """As long as the chunk that sifts has written both."""
    family.sql("DELETE FROM parent")

    def chunk(ctx: Any, rows: Any) -> None:
        if any(row.id == 7 for row in rows):
            raise ValueError
        note(ctx, rows)
        ids = {"ids": [row.id for row in rows]}
        ctx.connection.execute(
            text("INSERT INTO parent SELECT unnest(CAST(:ids AS bigint[]))"), ids
        )

    view = family.run(family.job(family.step(chunk, cuts=(), skip_limit=1, max_attempts=1)))

    assert view.batch.status is BatchStatus.COMPLETED
    assert family.sql("SELECT count(*) FROM child") == 19


@pytest.mark.parametrize("through", ["connection", "session"])
def test_what_passes_is_waited_out_when_a_deferred_trigger_says_it(
    stumbles: Yard, through: str
) -> None:
    stumbles.sql("""
        CREATE CONSTRAINT TRIGGER stumble AFTER INSERT ON done DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION stumble()""")

    def chunk(ctx: Any, rows: Any) -> None:
        getattr(ctx, through)
        stumbles.note(ctx, rows)

    view = stumbles.run(stumbles.job(stumbles.step(chunk, cuts=(), max_attempts=1)))

    assert view.batch.status is BatchStatus.COMPLETED
    assert stumbles.done == list(range(1, 21))
    assert stumbles.sql("SELECT count(*) FROM task_attempt") == 0


@pytest.mark.parametrize("through", ["connection", "session"])
def test_what_passes_is_waited_out_when_the_commit_itself_says_it(
    stumbles: Yard, through: str
) -> None:
    """It is deferred by the very statement that writes the checkpoint, behind all others."""
    stumbles.sql("CREATE TABLE late (id int)")
    stumbles.sql("""
        CREATE CONSTRAINT TRIGGER stumble AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION stumble()""")
    stumbles.sql("""
        CREATE FUNCTION put_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            SET CONSTRAINTS ALL DEFERRED;
            INSERT INTO late VALUES (1);
            RETURN NULL;
        END $$""")
    stumbles.sql("""
        CREATE TRIGGER put_off AFTER UPDATE OF checkpoint ON task_partition
        FOR EACH ROW EXECUTE FUNCTION put_off()""")

    def chunk(ctx: Any, rows: Any) -> None:
        getattr(ctx, through)
        stumbles.note(ctx, rows)

    try:
        step = stumbles.step(chunk, cuts=(), max_attempts=1)
        view = stumbles.run(stumbles.job(step))
    finally:
        stumbles.sql("DROP FUNCTION put_off CASCADE")
        stumbles.sql("DROP TABLE late")

    assert view.batch.status is BatchStatus.COMPLETED
    assert stumbles.done == list(range(1, 21))
    assert stumbles.sql("SELECT count(*) FROM task_attempt") == 0
