"""Erases what finished tasks hold of users' values, in every column that can hold one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.errors import SchemaError
from tasks_app.domain.tasks.masks import ERASED, ERASED_MARK
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import (
    ALERT,
    ALL,
    ATTEMPT,
    AUDIT,
    COMPLETED,
    ERROR,
    FINGERPRINT,
    GROUP,
    LARGE_VALUE,
    LOG_LINES,
    NOW,
    PROGRESS,
    SCHEDULE,
    TRANSITION,
    WORKER,
)

SUBJECT = "subject"  # the header that names whom a task is about, beside its biz_key


class Whose(NamedTuple):
    """Whose tasks are meant."""

    biz_keys: Sequence[str]
    subject: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        return {"biz_keys": list(self.biz_keys), "subject": self.subject}


def _about(key: str, subject: str) -> str:
    return f"""({key} = ANY(CAST(:biz_keys AS text[]))
        OR CAST(:subject AS text) IS NOT NULL AND {subject} = :subject)"""


def _of_row(column: str) -> str:
    """Return the condition on a task that is kept as JSON."""
    return _about(f"{column} ->> 'biz_key'", f"{column} #>> '{{headers,{SUBJECT}}}'")


_FIND = text(f"""
    SELECT t.id, t.pool, t.state FROM {ALL} t
    WHERE {_about("t.biz_key", f"t.headers ->> '{SUBJECT}'")} ORDER BY t.id
""")
_IDS = "CAST(:ids AS bigint[])"
_MARKED = f"jsonb_build_object('{ERASED_MARK}', {NOW})"


class Erased(StrEnum):
    """What ``erase`` does with the values of a task."""

    OBJECT = "object"  # an object that says when stands in their place
    WORD = "word"  # a word does
    NULL = "null"
    ROW = "row"  # the row is deleted
    PART = "part"  # a statement of its own takes out what is about the tasks
    LEFT = "left"  # they stay, and the receipt says so, while there is something to run
    KEPT = "kept"  # they stay: keys, names, words of operators, and what belongs to no task


_BY = {Erased.OBJECT: _MARKED, Erased.WORD: f"'{ERASED}'", Erased.NULL: "NULL"}


def _bare(table: str) -> str:
    return table.rpartition(".")[2]


def _erasing(table: str, task: str) -> str:
    """Return the statement of a table whose values are replaced, as the list says."""
    values = {
        f"t.{value.column}": f"{value.column} = CASE WHEN t.{value.column} IS NOT NULL "
        f"THEN {_BY[value.erased]} END"
        for value in USER_VALUES
        if value.table == _bare(table) and value.erased in _BY
    }
    return f"""
        UPDATE {table} t SET {", ".join(values.values())}
        WHERE t.{task} = ANY({_IDS}) AND num_nonnulls({", ".join(values)}) > 0
        RETURNING t.{task}"""


def _read(lines: str) -> tuple[UserValue, ...]:
    """Read lines of tables, columns and words; a table's name stands for all of its columns."""
    found = []
    for line in lines.strip().splitlines():
        tables, columns, erased, *words = line.split()
        for table in tables.split(","):
            found += [
                UserValue(
                    f"task_{table}",
                    column,
                    Erased(erased),
                    *(word in words for word in ("masked", "encrypted", "exported")),
                )
                for column in columns.split(",")
            ]
    return tuple(found)


class UserValue(NamedTuple):
    """A column, and what protects its values."""

    table: str  # without the schema
    column: str
    erased: Erased
    masked: bool  # what masked paths hold is not shown to people; in texts it is not stored
    encrypted: bool  # of encrypted tasks; texts say that they are
    exported: bool  # by ``tasks-app export``, for another database

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}"


USER_VALUES = _read("""
pending          payload                                 left    masked encrypted exported
pending          headers                                 left    exported
pending          sub_status                              left
completed,error  payload                                 object  masked encrypted
completed        result                                  object  masked encrypted
error            result                                  object
completed,error  headers                                 object
completed,error  error                                   word    masked
completed,error  sub_status                              word
attempt          kind                                    word
attempt          message                                 word    masked
attempt          encrypted_message                       null    encrypted
attempt          traceback                               null
transition       detail,why                              word
log              lines                                   part
progress         checkpoint                              row     masked
progress         note                                    row
large_value      content                                 row     encrypted
group            then_row,on_failure                     part    encrypted
worker           running                                 part
audit            what,patch                              part
fingerprint      kind,message,frames,known_by,note       part
alert            fact                                    part
schedule         payload                                 left    masked
schedule         options,declared                        left
pending          biz_key,unique_key,order_key,limit_key,fair_key,more_limit_keys  kept  exported
completed,error  biz_key,unique_key,order_key,limit_key,fair_key,more_limit_keys  kept
pending          parked,parked_for                       kept
key              unique_key                              kept
gate             gate                                    kept
limit            target                                  kept
queue_fair       weights                                 kept
lock,lock_part,lock_wait  resource                       kept
lock_holder,lock_wait     who                            kept
lock_part,lock_wait       blocked_by                     kept
batch            params,identity,error                   kept
batch_step       plan,result,error                       kept
batch_skip       key,reason                              kept
marker           key                                     kept
partition        num_range,time_range,text_range,source,checksum,checkpoint,error  kept
partition_value  value                                   kept
breaker          reason                                  kept
queue_pause      reason                                  kept
audit            role,who,answers,left_out               kept
transition       who                                     kept
alert            key                                     kept
error,attempt    fingerprint                             kept
schedule         remark                                  kept
""")
"""Columns that may hold a user's value. Those that hold names of code and words of ours alone are
listed by the test."""
_POOLS = {table: text(_erasing(table, "id")) for table in (COMPLETED, ERROR)}
# Causes that no other task has: elsewhere their texts are those of others, too.
_CAUSES = f"""
    SELECT m.fingerprint FROM (
        SELECT a.fingerprint FROM {ATTEMPT} a WHERE a.task_id = ANY({_IDS})
        UNION SELECT e.fingerprint FROM {ERROR} e WHERE e.id = ANY({_IDS})) AS m
    WHERE NOT EXISTS (SELECT FROM {ERROR} e
        WHERE e.fingerprint = m.fingerprint AND e.error IS DISTINCT FROM '{ERASED}')"""
_BESIDE = {
    ATTEMPT: _erasing(ATTEMPT, "task_id"),
    TRANSITION: _erasing(TRANSITION, "task_id"),
    # Lines come after the end of a run: those that are still to come meet an empty row.
    LOG_LINES: f"""
        INSERT INTO {LOG_LINES} AS l (task_id, attempt, lines, cut)
        SELECT k.task_id, k.attempt, '[]', 0 FROM (
            SELECT k.task_id, k.attempt FROM {LOG_LINES} k WHERE k.task_id = ANY({_IDS})
            UNION SELECT t.id, t.attempt FROM {ALL} t
                WHERE t.id = ANY({_IDS}) AND t.finished_at > {NOW} - interval '1 hour') AS k
        ON CONFLICT (task_id, attempt) DO UPDATE SET lines = '[]', cut = 0""",
    LARGE_VALUE: f"DELETE FROM {LARGE_VALUE} t WHERE t.task_id = ANY({_IDS})",
    PROGRESS: f"DELETE FROM {PROGRESS} t WHERE t.task_id = ANY({_IDS})",
    WORKER: f"""
        UPDATE {WORKER} w SET running = (
            SELECT coalesce(jsonb_agg(r), '[]') FROM jsonb_array_elements(w.running) AS r
            WHERE CAST(r ->> 'id' AS bigint) <> ALL ({_IDS}))
        WHERE EXISTS (SELECT FROM jsonb_array_elements(w.running) AS r
            WHERE CAST(r ->> 'id' AS bigint) = ANY({_IDS}))""",
    ALERT: f"""
        UPDATE {ALERT} a SET fact = '{ERASED}' WHERE split_part(a.key, ':', 2) IN (
            SELECT encode(c.fingerprint, 'hex') FROM ({_CAUSES}) AS c)""",
    FINGERPRINT: f"DELETE FROM {FINGERPRINT} f WHERE f.fingerprint IN ({_CAUSES})",
}
_CALLBACKS = ("then_row", "on_failure")


def _without_values(column: str) -> str:
    return f"""{column} = CASE WHEN {_of_row(f"g.{column}")}
        THEN g.{column} || jsonb_build_object('payload', {_MARKED}, 'headers', NULL,
            'enabled', g.outcome IS NOT NULL)
        ELSE g.{column} END"""


def _waits(column: str) -> str:
    return f"""{_of_row(f"g.{column}")}
        AND NOT (g.{column} -> 'payload' ? '{ERASED_MARK}' AND g.{column} @> '{{"enabled": false}}'
            AND (g.{column} -> 'payload') - '{ERASED_MARK}' = '{{}}')"""


_GROUPS = text(f"""
    UPDATE {GROUP} g SET {", ".join(map(_without_values, _CALLBACKS))}
    WHERE ({" OR ".join(_of_row(f"g.{column}") for column in _CALLBACKS)})
      AND (:open OR g.outcome IS NOT NULL)
""")
_TO_CALL = text(f"""
    SELECT count(*) FROM {GROUP} g
    WHERE g.outcome IS NULL AND ({" OR ".join(map(_waits, _CALLBACKS))})
""")
_SCHEDULES = text(f"SELECT s.name FROM {SCHEDULE} s WHERE {_of_row('s.options')} ORDER BY s.name")
_OPEN = f"""EXISTS (
    SELECT FROM {AUDIT} o WHERE o.id = coalesce(t.bulk, t.id) AND o.until IS NOT NULL
      AND (SELECT s.after FROM {AUDIT} s WHERE s.id = o.id OR s.bulk = o.id
           ORDER BY s.id DESC LIMIT 1) IS NOT NULL)"""
"""The bulk goes on, and its patch would be applied as it stands."""
_HAS_TEXT = "(t.patch IS NOT NULL OR t.what ?| ARRAY['why', 'error_text'])"
_IN_BULK = f"""(t.id = ANY(ARRAY(SELECT a.bulk FROM {AUDIT} a WHERE a.ids && {_IDS}))
    OR t.ids && {_IDS} OR t.what ->> 'biz_key' = ANY(CAST(:biz_keys AS text[])))"""
_AUDIT = text(f"""
    UPDATE {AUDIT} t SET patch = CASE WHEN t.patch IS NOT NULL THEN {_MARKED} END,
        what = t.what - 'why' - 'error_text'
    WHERE {_IN_BULK} AND {_HAS_TEXT} AND NOT {_OPEN}
""")
_OPEN_BULKS = text(f"""
    SELECT DISTINCT coalesce(t.bulk, t.id) FROM {AUDIT} t
    WHERE {_IN_BULK} AND {_HAS_TEXT} AND {_OPEN} ORDER BY 1
""")
_MAY = text("SELECT has_table_privilege(:audit, 'UPDATE') AS may, current_user AS role")


class Meant(NamedTuple):
    """The tasks that an erasure means."""

    over: list[int]
    waiting: list[int]
    running: list[int]


def check_may_erase(connection: Connection) -> None:
    """Pass if this role may erase: who only adds lines to the audit may not.

    Raises SchemaError if it may not.
    """
    row = connection.execute(_MAY, {"audit": AUDIT}).one()
    if not row.may:
        raise SchemaError(
            f"The database role {row.role} may not erase: it may not change the audit. "
            "Run it as the owner of the tables."
        )


def find(connection: Connection, whose: Whose) -> Meant:
    """Return the tasks of these keys, or about this subject. By subject it reads every row."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    meant = Meant([], [], [])
    for row in connection.execute(_FIND, whose.values):
        if row.pool != "pending":
            meant.over.append(row.id)
        elif row.state == State.RUNNING:
            meant.running.append(row.id)
        else:
            meant.waiting.append(row.id)
    return meant


def erase_rows(connection: Connection, ids: Sequence[int]) -> dict[str, list[int]]:
    """Erase what rows of these tasks hold, of those that are over; return their ids, by table."""
    values = {"ids": sorted(ids), "now": None}
    return {
        _bare(table): list(connection.execute(statement, values).scalars())
        for table, statement in _POOLS.items()
    }


def erase_beside(connection: Connection, ids: Sequence[int]) -> dict[str, int]:
    """Erase what other tables hold of erased rows; return how many rows changed, by table."""
    values = {"ids": sorted(ids), "now": None}
    return {
        _bare(table): connection.execute(text(statement), values).rowcount
        for table, statement in _BESIDE.items()
    }


def erase_callbacks(connection: Connection, whose: Whose, *, open_too: bool) -> int:
    """Erase callbacks of groups; return how many groups changed.

    ``open_too``: of those that go on, too, whose callbacks are then skipped.
    """
    values = {**whose.values, "open": open_too, "now": None}
    return connection.execute(_GROUPS, values).rowcount


def erase_audit(connection: Connection, ids: Sequence[int], biz_keys: Sequence[str]) -> int:
    """Erase what operators typed about these tasks; return how many lines changed."""
    values = {"ids": sorted(ids), "biz_keys": list(biz_keys), "now": None}
    return connection.execute(_AUDIT, values).rowcount


def open_bulks(connection: Connection, ids: Sequence[int], biz_keys: Sequence[str]) -> list[int]:
    """Return the bulks that changed such tasks and are not over, so that their lines stay."""
    values = {"ids": sorted(ids), "biz_keys": list(biz_keys)}
    return list(connection.execute(_OPEN_BULKS, values).scalars())


def count_callers(connection: Connection, whose: Whose) -> int:
    """Return how many groups that go on have such a task to call."""
    return int(connection.execute(_TO_CALL, whose.values).scalar_one())


def schedules_of(connection: Connection, whose: Whose) -> list[str]:
    """Return the names of the schedules that make such tasks."""
    return list(connection.execute(_SCHEDULES, whose.values).scalars())
