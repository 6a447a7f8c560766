"""Rescue, sweep and partitions as functions, with the statements of the actors in Python.

Workers still run hooks, and wake tasks that wait for a key or limit (their next check of gates does
so). They also prune rows of single names, the error pool and lists.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.statistics import outcome_of
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool import retention
from tasks_app.pool.connection.row_by_row import NOTE_OF_REFUSAL, RECORD_REFUSALS, ROUNDS
from tasks_app.pool.connection.sessions import PLANNER_SETTINGS_OF_FUNCTION
from tasks_app.pool.dispatch.set_aside import FIND_TASKS_TO_SWEEP, SWEEP_TASKS, SWEEPS
from tasks_app.pool.fragments.transition_log import Logged
from tasks_app.pool.runs.leases import EXPIRED, FIND_EXPIRED, RESCUES, VANISHED_VALUES
from tasks_app.pool.statistics.parts import ADD_COUNTS
from tasks_app.pool.tables import COMPLETED, table

RESCUE, SWEEP = table("task_rescue_expired"), table("task_sweep")
MAINTAIN = table("task_maintain_partitions")
_WHAT = {Event.RESCUE: RESCUES, Event.RELEASE: SWEEPS}
_OF_ONE_ROW = """data_exception OR integrity_constraint_violation OR program_limit_exceeded
                OR plpgsql_error"""
_OVER = (State.SKIPPED, State.EXPIRED, State.CANCELLED, State.FAILED, State.PENDING)


def upkeep(settings: Settings) -> dict[str, str]:
    """Return signatures, each with its definition; they contain the present settings."""
    level = Logged(settings.transitions)
    rescue = {
        **{name: literal(value) for name, value in VANISHED_VALUES.items()},
        "lease": literal(settings.lease),
        "grace": literal(settings.renew_every),
        "max_crashes": str(settings.max_crashes),
    }
    resting = f"""IF pg_postmaster_start_time() > clock - {literal(settings.renew_every)} THEN
        RETURN 0;  -- workers could not renew their leases while the server was down
    END IF;"""
    return {
        f"{RESCUE}(at timestamptz DEFAULT NULL, most integer DEFAULT 500)": _moving(
            (FIND_EXPIRED, EXPIRED.for_level(level).text), rescue, Event.RESCUE, resting
        ),
        f"{SWEEP}(at timestamptz DEFAULT NULL, most integer DEFAULT 500)": _moving(
            (FIND_TASKS_TO_SWEEP, SWEEP_TASKS.for_level(level).text), {}, Event.RELEASE
        ),
        f"{MAINTAIN}(at timestamptz DEFAULT NULL)": _partitions(settings.completed.longest),
    }


def _moving(
    statements: tuple[str, str], values: dict[str, str], event: Event, first: str = ""
) -> str:
    """Return a function that finds rows by the first statement and moves them by the second."""
    find, move = (
        bound(each, {**values, "ids": "some_ids", "skipped": "passed_over"}) for each in statements
    )
    name, why = literal(NOTE_OF_REFUSAL + _WHAT[event]), "'SQLSTATE ' || SQLSTATE"
    refusal = {"name": name, "rows": "some_ids[1]", "why": why}
    tell = "".join(f"{bound(each.text, refusal)};" for each in RECORD_REFUSALS)
    outcomes = " ".join(f"WHEN '{s}' THEN {int(outcome_of(s, event))}" for s in _OVER)
    noted = {name: name for name in ("names", "queues", "outcomes")}
    noted["numbers"] = "array_fill(1, ARRAY[cardinality(names)])"
    return f"""
RETURNS integer LANGUAGE plpgsql SET search_path FROM CURRENT
{PLANNER_SETTINGS_OF_FUNCTION} AS $$
-- Returns how many tasks moved.
DECLARE
    clock timestamptz := coalesce(at, statement_timestamp());
    all_ids bigint[]; some_ids bigint[]; one_alone boolean;
    moved record; names text[] := '{{}}'; queues text[] := '{{}}'; outcomes smallint[] := '{{}}';
BEGIN
    {first}
    FOR passed_over IN 0 .. {ROUNDS - 1} LOOP
        passed_over := passed_over * most;
        all_ids := ARRAY({find});
        FOR some_ids, one_alone IN
            SELECT all_ids, false UNION ALL SELECT ARRAY[u.i], true FROM unnest(all_ids) AS u(i)
        LOOP
            BEGIN
                FOR moved IN {move}
                LOOP
                    names := names || moved.name;
                    queues := queues || moved.queue;
                    outcomes := outcomes || (CASE moved.goes_to {outcomes} END)::smallint;
                END LOOP;
                EXIT WHEN NOT one_alone;
            EXCEPTION WHEN {_OF_ONE_ROW} THEN
                IF one_alone THEN
                    RAISE WARNING '{_WHAT[event]}: % is refused (%)', some_ids[1], SQLSTATE;
                    {tell}
                END IF;
            END;
        END LOOP;
        EXIT WHEN cardinality(names) > 0 OR cardinality(all_ids) < most;
    END LOOP;
    IF cardinality(names) > 0 THEN
        {bound(ADD_COUNTS.text, noted)};
    END IF;
    RETURN cardinality(names);
END $$"""


def _partitions(keep: timedelta | None) -> str:
    day = retention.DayPartition("%1$I", datetime(1970, 1, 1, tzinfo=UTC), 0, attached=False)
    values = {"after": "%2$s", "most": str(retention.LOOKED_AT)}
    history = bound(retention.history_of(day), values)
    return f"""
RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT SET timezone TO 'UTC'
{PLANNER_SETTINGS_OF_FUNCTION}
SET lock_timeout TO '{retention.LOCK_WAIT}' AS $$
-- Creates or drops partitions of the completed pool, one step a call; NULL: nothing to do.
DECLARE
    clock timestamptz := coalesce(at, statement_timestamp());
    today date := (clock AT TIME ZONE 'UTC')::date;
    keep interval := {"NULL" if keep is None else literal(keep)};
    parent oid := '{COMPLETED}'::regclass;
    day record; said jsonb; seen integer; up_to bigint; name text;
BEGIN
    FOR n IN 0 .. {retention.DAYS_AHEAD} LOOP
        name := 'task_completed_p' || to_char(today + n, 'YYYYMMDD');
        CONTINUE WHEN EXISTS (
            SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = parent AND c.relname = name);
        EXECUTE format('CREATE TABLE {table("%1$I")} (LIKE {COMPLETED} INCLUDING ALL)', name);
        EXECUTE format('ALTER TABLE {COMPLETED} ATTACH PARTITION {table("%1$I")}'
            ' FOR VALUES FROM (%2$L) TO (%3$L)', name, today + n, today + n + 1);
        RETURN 'made ' || name;
    END LOOP;
    IF keep IS NULL THEN
        RETURN NULL;
    END IF;
    FOR day IN
        SELECT c.relname AS name, i.inhrelid IS NOT NULL AS attached,
            obj_description(c.oid, 'pg_class') AS mark
        FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = parent
        WHERE c.relkind = 'r' AND c.relname ~ '^task_completed_p[0-9]{{8}}$'
          AND c.relnamespace = (SELECT p.relnamespace FROM pg_class p WHERE p.oid = parent)
          AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamptz <= clock - keep
        ORDER BY c.relname
    LOOP
        IF day.attached THEN
            EXECUTE format('LOCK TABLE {table("%1$I")} IN ACCESS EXCLUSIVE MODE', day.name);
            LOCK TABLE {retention.DEFAULT} IN ACCESS EXCLUSIVE MODE;
            up_to := 0;
            EXECUTE format('ALTER TABLE {COMPLETED} DETACH PARTITION {table("%1$I")}', day.name);
        ELSE
            BEGIN
                said := day.mark::jsonb -> 'tasks_app';
            EXCEPTION WHEN data_exception THEN
                said := NULL;
            END;
            CONTINUE WHEN (said ->> 'detached')::boolean IS NOT TRUE;  -- not ours
            EXECUTE format($history${history}$history$, day.name, coalesce(said ->> 'after', '0'))
                INTO seen, up_to;
            IF seen < {retention.LOOKED_AT} THEN
                EXECUTE format('DROP TABLE {table("%1$I")}', day.name);
                RETURN 'dropped ' || day.name;
            END IF;
        END IF;
        EXECUTE format('COMMENT ON TABLE {table("%1$I")} IS %2$L', day.name, jsonb_build_object(
            'tasks_app', jsonb_build_object('detached', true, 'after', up_to,
                'names', '[]'::jsonb, 'done', '[]'::jsonb)));
        RETURN CASE WHEN day.attached THEN 'detached ' ELSE 'forgot history of ' END || day.name;
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
    RETURN 'waits: the table is in use';
END $$"""


def bound(statement: str, values: dict[str, str]) -> str:
    """Return the statement with expressions of the function in place of its parameters."""
    known = {"now": "clock", "most": "most", **values}
    replaced = re.sub(r"(?<![:\\]):([a-z_]+)", lambda found: known[found[1]], statement)
    return replaced.replace(r"\:", ":").strip()


def literal(value: object) -> str:
    if isinstance(value, timedelta):
        return f"interval '{value.total_seconds():.6f} s'"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    return "'" + str(value).replace("'", "''") + "'"
