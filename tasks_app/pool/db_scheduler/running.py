"""SQL tasks that the database runs without a worker, and the statements that it may execute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from tasks_app.domain.config.retention import HistoryLevel, parse_histories
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.spec import SqlStatement
from tasks_app.domain.statistics import CountedOutcome, outcome_of
from tasks_app.domain.tasks.records import text_array
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.sessions import PLANNER_SETTINGS_OF_FUNCTION, driver_of
from tasks_app.pool.db_scheduler.upkeep import bound, literal
from tasks_app.pool.fragments.transition_log import Logged
from tasks_app.pool.runs.claim import HAS_NO_LIMITS_OF_ITS_OWN, claim_next_statement
from tasks_app.pool.runs.settle import FORGET, ONE
from tasks_app.pool.statistics.parts import ADD_COUNTS
from tasks_app.pool.tables import PENDING, table

CLAIM, CARRY_OUT, RUN = table("task_sql_claim"), table("task_sql_carry_out"), table("task_run_sql")
REPEATS = 5  # of a statement before a conflict of transactions counts as a failure; as in a worker


@dataclass(frozen=True, slots=True)
class SqlTask:
    name: str
    queue: str
    statement: SqlStatement
    max_attempts: int
    at_most_once: bool
    waits: tuple[float, ...]  # seconds at most by the level; the last one repeats
    least: float
    most: float  # a wait is a random share of it between these
    history: HistoryLevel | None = None  # None: that of the task's queue


class UnfitStatementError(Exception):
    """PostgreSQL cannot read a statement, or a function cannot hold it; says why."""


def running(
    connection: Connection, settings: Settings, tasks: Sequence[SqlTask], home: str
) -> dict[str, str]:
    """Return signatures, each with its definition. Raises UnfitStatementError as ``call`` does."""
    level = Logged(settings.transitions)
    calls = "\n".join(call(connection, task) for task in tasks)
    policies = {t.name: [t.waits, t.least, t.most] for t in tasks}
    handlers = literal(json.dumps({t.name: [t.max_attempts, t.at_most_once] for t in tasks}))
    claim = {
        "handlers": handlers,
        "queues": f"CAST({literal(text_array(sorted({t.queue for t in tasks})))} AS text[])",
        "owner": "'database ' || pg_backend_pid()",
        "lease": literal(settings.lease),
        "token": "v_token",
        "most": "1",
        "lonely": "true",
        "within": "NULL",
        "after_at": "'{}'",
        "after_id": "'{}'",
    }
    claiming = bound(
        claim_next_statement(logs=level is Logged.ALL, more=HAS_NO_LIMITS_OF_ITS_OWN), claim
    )
    one, forget = (bound(each.for_level(level).text, _SETTLED) for each in (ONE, FORGET))
    unkept = {"outcomes": f"ARRAY[{CountedOutcome.UNKEPT:d}]"}
    default, queues = parse_histories(settings.history)
    histories = [{t.name: t.history for t in tasks if t.history}, queues]
    return {
        f"""{CLAIM}(at timestamptz DEFAULT NULL, OUT v_id bigint, OUT v_attempt integer,
    OUT v_token uuid)""": f"""
LANGUAGE plpgsql SET search_path FROM CURRENT
{PLANNER_SETTINGS_OF_FUNCTION} AS $$
-- Claims one due task; v_id is NULL: there is none. Commit before you run it.
DECLARE
    clock timestamptz := coalesce(at, clock_timestamp());
    claimed record;
BEGIN
    v_token := gen_random_uuid();
    FOR claimed IN {claiming}
    LOOP
        v_id := claimed.id; v_attempt := claimed.attempt;
    END LOOP;
END $$""",
        f"""{CARRY_OUT}(v_id bigint, v_attempt integer, v_token uuid,
    at timestamptz DEFAULT NULL)""": f"""
RETURNS boolean LANGUAGE plpgsql SET search_path FROM CURRENT AS {QUOTES}
-- Runs the statement of a claimed task and settles it; false: the call was cancelled.
DECLARE
    clock timestamptz; began timestamptz := clock_timestamp();
    v_task {PENDING}; v_moved record; v_rows bigint; v_state text; v_text text; v_kind text;
    v_event text := '{Event.SUCCEED}'; v_target text := '{State.SUCCEEDED}'; v_went text;
    v_tries integer := 0; v_failures integer; v_level integer; v_wait float8 := 0;
    v_policy jsonb; v_result text; v_print text; v_over boolean := false;
    v_histories jsonb := {literal(json.dumps(histories))}; v_history text;
    v_role text := current_setting('role'); v_path text := current_setting('search_path');
BEGIN
    SELECT p.* INTO v_task FROM {PENDING} p
    WHERE p.id = v_id AND p.attempt = v_attempt AND p.lease_token = v_token
      AND p.state = '{State.RUNNING}' AND {handlers}::jsonb ? p.name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN true;  -- it was taken back, or its handler is not in the list any more
    END IF;
    LOOP
        v_state := NULL;
        BEGIN
            {checked(tasks)}
            CASE v_task.name
{calls}
            END CASE;
            -- As after a run in a worker: deferred triggers fire, and settings are reset.
            SET CONSTRAINTS ALL IMMEDIATE;
            RESET ALL;
            PERFORM set_config('role', v_role, false), set_config('search_path', v_path, true);
        EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
            GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE, v_text = MESSAGE_TEXT;
            v_over := v_state = '57014';
        END;
        v_tries := v_tries + 1;
        EXIT WHEN v_state IS NULL OR v_state NOT IN ('40001', '40P01')
            OR v_task.at_most_once OR v_tries > {REPEATS};
    END LOOP;
    v_failures := v_task.failures; v_level := v_task.retry_level;
    IF v_state IS NULL THEN
        v_result := CASE WHEN v_rows IS NOT NULL THEN jsonb_build_object('rows', v_rows)::text END;
    ELSE
        v_failures := v_failures + 1;
        v_kind := 'SQLSTATE ' || v_state;
        v_text := left(v_text, 2000);
        v_print := encode(substr(sha256(convert_to(v_kind, 'UTF8') || '\\x00'::bytea || convert_to(
            regexp_replace(regexp_replace(v_text, '"[^"]*"', '''…''', 'g'), '[0-9]+', '#', 'g'),
            'UTF8')), 1, 8), 'hex');
        IF v_failures >= v_task.max_attempts OR v_state IN ('2D000', '25001', 'TA001') THEN
            v_event := '{Event.FAIL}'; v_target := '{State.FAILED}';
        ELSE
            v_event := '{Event.RETRY}'; v_target := '{State.PENDING}';
            v_level := v_level + 1;
            v_policy := {literal(json.dumps(policies))}::jsonb -> v_task.name;
            v_wait := (v_policy -> 0 ->> (least(v_level, jsonb_array_length(v_policy -> 0)) - 1)
                )::float8 * ((v_policy ->> 1)::float8
                    + random() * ((v_policy ->> 2)::float8 - (v_policy ->> 1)::float8));
        END IF;
    END IF;
    clock := coalesce(at, clock_timestamp());
    IF v_event = '{Event.SUCCEED}' AND v_task.batch_id IS NULL THEN
        v_history := coalesce(v_histories -> 0 ->> v_task.name, v_histories -> 1 ->> v_task.queue,
            {literal(default)});
        IF v_history = '{HistoryLevel.NONE}'
            OR v_history = '{HistoryLevel.FAILURES}' AND v_attempt = 1
        THEN
            FOR v_moved IN {forget}
            LOOP
                v_went := '{State.SUCCEEDED}';
                {bound(ADD_COUNTS.text, _NOTED | unkept)};
            END LOOP;
        END IF;
    END IF;
    IF v_went IS NULL THEN
        FOR v_moved IN {one}
        LOOP
            v_went := coalesce(v_went, v_moved.goes_to);
        END LOOP;
    END IF;
    IF v_went IS NULL THEN
        RAISE EXCEPTION 'the fence of task % is lost', v_id;
    END IF;
    {bound(ADD_COUNTS.text, _NOTED)};
    RETURN NOT v_over;
END {QUOTES}""",
        f"{RUN}(most integer DEFAULT 10000)": f"""
LANGUAGE plpgsql AS $$
-- Runs due tasks, one after the other, until none is left. CALL it outside a transaction.
DECLARE
    claimed record;
BEGIN
    FOR n IN 1 .. most LOOP
        SELECT * INTO claimed FROM {at_home(home, CLAIM)}();
        EXIT WHEN claimed.v_id IS NULL;
        COMMIT;
        EXIT WHEN NOT {at_home(home, CARRY_OUT)}(claimed.v_id, claimed.v_attempt, claimed.v_token);
        COMMIT;
    END LOOP;
END $$""",
    }


_OF_ONE = {
    "ids": "v_id",
    "attempts": "v_attempt",
    "tokens": "v_token",
    "targets": "v_target",
    "waits": "v_wait",
    "failures": "v_failures",
    "crashes": "NULL::smallint",
    "levels": "v_level",
    "kinds": "v_kind",
    "results": "v_result",
    "messages": "v_text",
    "events": "v_event",
    "tracebacks": "NULL::text",
    "encrypted": "NULL::text",
    "fingerprints": "v_print",
    "said": "NULL::text",
    "run_ms": "least(extract(epoch FROM clock_timestamp() - began) * 1000, 2147483647)",
}
_SETTLED = {name: f"ARRAY[{value}]" for name, value in _OF_ONE.items()}
_OUTCOMES = " ".join(
    f"WHEN '{state}' THEN {int(outcome_of(state, event))}"
    for state, event in (
        (State.SUCCEEDED, Event.SUCCEED),
        (State.PENDING, Event.RETRY),
        (State.FAILED, Event.FAIL),
        (State.CANCELLED, Event.RETRY),
    )
)
_NOTED = {
    "names": "ARRAY[v_task.name]",
    "queues": "ARRAY[v_task.queue]",
    "numbers": "ARRAY[1]",
    "outcomes": f"ARRAY[CASE v_went {_OUTCOMES} END]",
}


def at_home(home: str, name: str) -> str:
    """Return a name with the schema of the tables, for any search path."""
    return f"{home}.{name.rpartition('.')[2]}"


QUOTES = "$tasks_app$"  # around the function that holds all statements


def checked(tasks: Sequence[SqlTask]) -> str:
    keys = {task.name: sorted(task.statement.names) for task in tasks}
    return f"""IF ARRAY(SELECT k FROM jsonb_object_keys(v_task.payload) AS k ORDER BY k COLLATE "C")
                <> ARRAY(SELECT k FROM jsonb_array_elements_text(
                    {literal(json.dumps(keys))}::jsonb -> v_task.name) AS k ORDER BY k COLLATE "C")
            THEN
                RAISE EXCEPTION USING ERRCODE = 'TA001',
                    MESSAGE = 'The payload must have the parameters of the statement and no others';
            END IF;"""


def call(connection: Connection, task: SqlTask) -> str:
    """Return the branch that executes the statement; values are parameters, never part of it."""
    if QUOTES in task.name + task.statement.text:
        raise UnfitStatementError(f"{task.name}: it contains {QUOTES}")
    marks = {name: f"${number}" for number, name in enumerate(task.statement.names, 1)}
    statement = task.statement.text % marks
    types = _types(connection, task.name, statement)
    values = [
        f"CAST(v_task.payload ->> {literal(name)} AS {kind})"
        for name, kind in zip(marks, types, strict=True)
    ]
    using = f" USING {', '.join(values)}" if values else ""
    first = statement.split(None, 1)[0].lower()
    counts = first in {"delete", "insert", "merge", "select", "update", "with"}
    counted = "GET DIAGNOSTICS v_rows = ROW_COUNT;" if counts else ""
    return f"""            WHEN {literal(task.name)} THEN
                EXECUTE {literal(statement)}{using}; {counted}"""


def _types(connection: Connection, name: str, statement: str) -> list[str]:
    server = driver_of(connection).pgconn
    connection.exec_driver_sql("SAVEPOINT tasks_app_reads")
    try:
        prepared = server.prepare(b"", statement.encode())
        if prepared.status != 1:  # PGRES_COMMAND_OK
            text = prepared.error_message.decode("utf-8", "replace").partition("\n")[0]
            raise UnfitStatementError(f"{name}: {text.partition(':')[2].strip()}")  # no ERROR
        found = server.describe_prepared(b"")
        oids = [found.param_type(number) for number in range(found.nparams)]
    finally:
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT tasks_app_reads")
    return [
        str(connection.exec_driver_sql("SELECT format_type(%s, -1)", (oid,)).scalar_one())
        for oid in oids
    ]
