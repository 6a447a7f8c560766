"""Erases users' values of finished tasks, in every column that can hold one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import product
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.errors import SchemaError
from tasks_app.domain.tasks.masks import ERASED, ERASED_MARK
from tasks_app.domain.tasks.states import State
from tasks_app.pool import tables as t

SUBJECT = "subject"  # the header that names the person a task is about


class ErasureKeys(NamedTuple):
    """The tasks of these keys, or about this subject."""

    biz_keys: Sequence[str]
    subject: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        return {"biz_keys": list(self.biz_keys), "subject": self.subject}


def _about(key: str, subject: str) -> str:
    return f"""({key} = ANY(CAST(:biz_keys AS text[]))
        OR CAST(:subject AS text) IS NOT NULL AND {subject} = :subject)"""


def _of_row(column: str) -> str:
    """Return the condition on a task that is stored as JSON."""
    return _about(f"{column} ->> 'biz_key'", f"{column} #>> '{{headers,{SUBJECT}}}'")


_IDS = "CAST(:ids AS bigint[])"
_MARKED = f"jsonb_build_object('{ERASED_MARK}', {t.NOW})"


class Erased(StrEnum):
    """What ``erase`` does with the values of a task."""

    OBJECT = "object"  # an object with the time of the erasure replaces them
    WORD = "word"  # a word replaces them
    NULL = "null"
    ROW = "row"  # the row is deleted
    PART = "part"  # a separate statement removes the tasks' part
    LEFT = "left"  # they stay, and the receipt says so, while there is something to run
    KEPT = "kept"  # they stay: keys, names, words of operators, values of no task


_BY = {Erased.OBJECT: _MARKED, Erased.WORD: f"'{ERASED}'", Erased.NULL: "NULL"}


def _bare(table: str) -> str:
    return table.rpartition(".")[2]


def _erasing(table: str, task: str) -> str:
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
    found = []
    for line in lines.strip().splitlines():
        kind, *places = line.split()
        erased, *words = kind.split(",")
        flags = [word in words for word in ("masked", "encrypted", "exported")]
        for place in places:
            tables, columns = (part.split(",") for part in place.split("."))
            found += [
                UserValue(f"task_{table}", column, Erased(erased), *flags)
                for table, column in product(tables, columns)
            ]
    return tuple(found)


class UserValue(NamedTuple):
    """A column, and how its values are protected."""

    table: str  # without the schema
    column: str
    erased: Erased
    masked: bool  # values of masked paths are not shown to people; in texts they are not stored
    encrypted: bool  # for encrypted tasks; in texts a mark says so
    exported: bool  # by ``tasks-app export``, for another database

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}"


# Columns that may hold a user's value; the test lists those that hold only our words.
USER_VALUES = _read("""
    left,masked,encrypted,exported  pending.payload
    left,exported                   pending.headers
    left                            pending.sub_status schedule.options,declared
    left,masked                     schedule.payload
    object,masked,encrypted         completed,error.payload completed.result
    object,encrypted                flow_step.result
    object                          error.result completed,error.headers
    word,masked                     completed,error.error attempt.message
    word                            completed,error.sub_status attempt.kind transition.detail,why
    null,encrypted                  attempt.encrypted_message
    null                            attempt.traceback
    part                            log.lines worker.running audit.what,patch alert.fact
    part                            fingerprint.kind,message,frames,known_by,note
    part                    event.payload,why
    part,encrypted                  group.then_row,on_failure
    row,masked                      progress.checkpoint
    row                             progress.note
    row,encrypted                   large_value.content step.result
    kept,exported  pending.biz_key,unique_key,order_key,limit_key,fair_key,more_limit_keys,locks
    kept  completed,error.biz_key,unique_key,order_key,limit_key,fair_key,more_limit_keys,locks
    kept  pending.parked,parked_for key.unique_key gate.gate limit.target queue_fair.weights
    kept  group.flow_key event.key,sent_by event_wait.key
    kept  lock,lock_part,lock_wait.resource lock_holder,lock_wait.who lock_part,lock_wait.blocked_by
    kept  batch.params,identity,error batch_step.plan,result,error batch_skip.key,reason marker.key
    kept  partition.num_range,time_range,text_range,source,checksum,checkpoint,error
    kept  partition_value.value breaker,queue_pause.reason audit.role,who,answers,left_out
    kept  transition.who alert.key error,attempt.fingerprint schedule.remark
""")
_POOLS = {table: text(_erasing(table, "id")) for table in (t.COMPLETED, t.ERROR)}
# Causes that no other task has: texts of the others belong to other tasks, too.
_CAUSES = f"""
    SELECT m.fingerprint FROM (
        SELECT a.fingerprint FROM {t.ATTEMPT} a WHERE a.task_id = ANY({_IDS})
        UNION SELECT e.fingerprint FROM {t.ERROR} e WHERE e.id = ANY({_IDS})) AS m
    WHERE NOT EXISTS (SELECT FROM {t.ERROR} e
        WHERE e.fingerprint = m.fingerprint AND e.error IS DISTINCT FROM '{ERASED}')"""
_BESIDE = {
    t.ATTEMPT: _erasing(t.ATTEMPT, "task_id"),
    t.TRANSITION: _erasing(t.TRANSITION, "task_id"),
    t.FLOW_STEP: _erasing(t.FLOW_STEP, "task_id"),
    # Log lines are written after the end of a run: later ones find an empty row.
    t.LOG_LINES: f"""
        INSERT INTO {t.LOG_LINES} AS l (task_id, attempt, lines, cut)
        SELECT k.task_id, k.attempt, '[]', 0 FROM (
            SELECT k.task_id, k.attempt FROM {t.LOG_LINES} k WHERE k.task_id = ANY({_IDS})
            UNION SELECT t.id, t.attempt FROM {t.ALL} t
                WHERE t.id = ANY({_IDS}) AND t.finished_at > {t.NOW} - interval '1 hour') AS k
        ON CONFLICT (task_id, attempt) DO UPDATE SET lines = '[]', cut = 0""",
    t.LARGE_VALUE: f"DELETE FROM {t.LARGE_VALUE} t WHERE t.task_id = ANY({_IDS})",
    t.PROGRESS: f"DELETE FROM {t.PROGRESS} t WHERE t.task_id = ANY({_IDS})",
    t.WORKER: f"""
        UPDATE {t.WORKER} w SET running = (
            SELECT coalesce(jsonb_agg(r), '[]') FROM jsonb_array_elements(w.running) AS r
            WHERE CAST(r ->> 'id' AS bigint) <> ALL ({_IDS}))
        WHERE EXISTS (SELECT FROM jsonb_array_elements(w.running) AS r
            WHERE CAST(r ->> 'id' AS bigint) = ANY({_IDS}))""",
    t.ALERT: f"""
        UPDATE {t.ALERT} a SET fact = '{ERASED}' WHERE split_part(a.key, ':', 2) IN (
            SELECT encode(c.fingerprint, 'hex') FROM ({_CAUSES}) AS c)""",
    # What others need, too, stays: they could not run without it.
    t.EVENT: f"""
        UPDATE {t.EVENT} e SET payload = {_MARKED},
            why = CASE WHEN e.why IS NOT NULL THEN '{ERASED}' END
        WHERE e.sent_at IS NOT NULL
          AND e.key = ANY(ARRAY(SELECT w.key FROM {t.EVENT_WAIT} w WHERE w.task_id = ANY({_IDS})))
          AND NOT EXISTS (SELECT FROM {t.EVENT_WAIT} w
              WHERE w.key = e.key AND w.task_id <> ALL ({_IDS}))""",
    t.FINGERPRINT: f"DELETE FROM {t.FINGERPRINT} f WHERE f.fingerprint IN ({_CAUSES})",
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


# The bulk continues, and would apply its patch as it is.
_OPEN = f"""EXISTS (
    SELECT FROM {t.AUDIT} o WHERE o.id = coalesce(t.bulk, t.id) AND o.until IS NOT NULL
      AND (SELECT s.after FROM {t.AUDIT} s WHERE s.id = o.id OR s.bulk = o.id
           ORDER BY s.id DESC LIMIT 1) IS NOT NULL)"""
_HAS_TEXT = "(t.patch IS NOT NULL OR t.what ?| ARRAY['why', 'error_text'])"
_IN_BULK = f"""(t.id = ANY(ARRAY(SELECT a.bulk FROM {t.AUDIT} a WHERE a.ids && {_IDS}))
    OR t.ids && {_IDS} OR t.what ->> 'biz_key' = ANY(CAST(:biz_keys AS text[])))"""


class ErasureTasks(NamedTuple):
    over: list[int]
    waiting: list[int]
    running: list[int]


def check_may_erase(connection: Connection) -> None:
    """Raise SchemaError if this role may not erase, as one that only adds lines to the audit."""
    query = text("SELECT has_table_privilege(:audit, 'UPDATE') AS may, current_user AS role")
    row = connection.execute(query, {"audit": t.AUDIT}).one()
    if not row.may:
        raise SchemaError(
            f"The database role {row.role} may not erase: it may not change the audit. "
            "Run this as the owner of the tables."
        )


def find(connection: Connection, whose: ErasureKeys) -> ErasureTasks:
    """Return the tasks; by subject it reads every row."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    meant = ErasureTasks([], [], [])
    query = text(f"""
        SELECT t.id, t.pool, t.state FROM {t.ALL} t
        WHERE {_about("t.biz_key", f"t.headers ->> '{SUBJECT}'")} ORDER BY t.id
    """)
    for row in connection.execute(query, whose.values):
        if row.pool != "pending":
            meant.over.append(row.id)
        elif row.state == State.RUNNING:
            meant.running.append(row.id)
        else:
            meant.waiting.append(row.id)
    return meant


def erase_rows(connection: Connection, ids: Sequence[int]) -> dict[str, list[int]]:
    """Erase values in the rows of finished tasks; return their ids by table."""
    values = {"ids": sorted(ids), "now": None}
    return {
        _bare(table): list(connection.execute(statement, values).scalars())
        for table, statement in _POOLS.items()
    }


def erase_beside(connection: Connection, ids: Sequence[int]) -> dict[str, int]:
    """Erase values of erased rows in other tables; return how many rows changed, by table."""
    values = {"ids": sorted(ids), "now": None}
    return {
        _bare(table): connection.execute(text(statement), values).rowcount
        for table, statement in _BESIDE.items()
    }


def erase_callbacks(connection: Connection, whose: ErasureKeys, *, open_too: bool) -> int:
    """Erase callbacks; ``open_too``: unfinished groups skip theirs. Return how many changed."""
    values = {**whose.values, "open": open_too, "now": None}
    query = text(f"""
        UPDATE {t.GROUP} g SET {", ".join(map(_without_values, _CALLBACKS))}
        WHERE ({" OR ".join(_of_row(f"g.{column}") for column in _CALLBACKS)})
          AND (:open OR g.outcome IS NOT NULL)
    """)
    return connection.execute(query, values).rowcount


def erase_audit(connection: Connection, ids: Sequence[int], biz_keys: Sequence[str]) -> int:
    """Erase texts of operators about these tasks; return how many lines changed."""
    values = {"ids": sorted(ids), "biz_keys": list(biz_keys), "now": None}
    query = text(f"""
        UPDATE {t.AUDIT} t SET patch = CASE WHEN t.patch IS NOT NULL THEN {_MARKED} END,
            what = t.what - 'why' - 'error_text'
        WHERE {_IN_BULK} AND {_HAS_TEXT} AND NOT {_OPEN}
    """)
    return connection.execute(query, values).rowcount


def open_bulks(connection: Connection, ids: Sequence[int], biz_keys: Sequence[str]) -> list[int]:
    values = {"ids": sorted(ids), "biz_keys": list(biz_keys)}
    query = text(f"""
        SELECT DISTINCT coalesce(t.bulk, t.id) FROM {t.AUDIT} t
        WHERE {_IN_BULK} AND {_HAS_TEXT} AND {_OPEN} ORDER BY 1
    """)
    return list(connection.execute(query, values).scalars())


def count_callers(connection: Connection, whose: ErasureKeys) -> int:
    query = text(f"""
        SELECT count(*) FROM {t.GROUP} g
        WHERE g.outcome IS NULL AND ({" OR ".join(map(_waits, _CALLBACKS))})
    """)
    return int(connection.execute(query, whose.values).scalar_one())


def schedules_of(connection: Connection, whose: ErasureKeys) -> list[str]:
    query = text(f"SELECT s.name FROM {t.SCHEDULE} s WHERE {_of_row('s.options')} ORDER BY s.name")
    return list(connection.execute(query, whose.values).scalars())
