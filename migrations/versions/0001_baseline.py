"""The whole schema of the first release, from the files of ``migrations/baseline``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = ("tasks_app",)
depends_on = None

OLDEST_CODE = "0001"

FILES = ("pools", "workers", "schedules", "flow_control", "locks", "batch", "events", "flows")
REPEATS = (
    *(("task_completed", "task_pending"), ("task_error", "task_pending")),
    *(("task_all", "task_pending"), ("task_schedules", "task_schedule")),
    *(("task_locks", "task_lock_holder"), ("task_locks", "task_lock_part")),
    *(("task_lock_report", "task_lock"), ("task_partitions", "task_partition")),
)
"""Which relation's columns mean what those of the other do, unless its own comments say more."""
COPY_COMMENTS = """
DO $$ DECLARE command text; BEGIN
    FOR command IN
        SELECT format('COMMENT ON COLUMN {of}.%I IS %L',
            attname, col_description(a.attrelid, a.attnum))
        FROM pg_attribute a JOIN pg_attribute b USING (attname)
        WHERE a.attrelid = CAST('{like}' AS regclass) AND b.attrelid = CAST('{of}' AS regclass)
          AND a.attnum > 0 AND col_description(b.attrelid, b.attnum) IS NULL
    LOOP
        EXECUTE command;
    END LOOP;
END $$
"""
_RELATION = re.compile(r"CREATE (?:UNLOGGED )?(TABLE|VIEW) (\w+)")
_BELOW = re.compile(r" {8,}-- (.*)")


def upgrade() -> None:
    for name in FILES:
        sql = (Path(__file__).parents[1] / "baseline" / f"{name}.sql").read_text()
        op.execute(sql)
        for what, about in comments(sql):
            quoted = about.replace("'", "''")
            op.execute(f"COMMENT ON {what} IS '{quoted}'")
    for of, like in REPEATS:
        op.execute(COPY_COMMENTS.format(of=of, like=like))


def comments(sql: str) -> Iterator[tuple[str, str]]:
    """Yield what stands as a comment behind a table, a view or a column, or indented below it."""
    kind = relation = what = about = ""
    for line in [*sql.splitlines(), ""]:
        if below := _BELOW.fullmatch(line):
            about = f"{about} {below[1]}".lstrip()
            continue
        if what and about:
            yield what, about
        what = ""
        code, _, about = line.partition("  -- ")
        if begins := _RELATION.match(code):
            kind, relation = begins.groups()
            what = f"{kind} {relation}"
        elif relation and (names := re.findall(r"\w+", code)):
            # A view's column is named last.
            what = f'COLUMN {relation}."{names[-1 if kind == "VIEW" else 0]}"'
        if code.endswith(";"):
            relation = ""
