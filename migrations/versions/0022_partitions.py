"""The partition repository: who processes which keys of a batch, and how far he is.

``task_partition`` has a row per partition of a program. Its keys stand in one of three ranges, by
the type of the key, or as values of their own in ``task_partition_value``. Ranges of one program
and source do not overlap: an exclusion constraint says so. Equality of text in it is the overlap of
two ranges that hold one text each, so that no extension is needed.
"""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

PROGRAM = 'program_id  text COLLATE "C"'
CHURN = "autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1"
OWNER = "program_id || E'\\n' || coalesce(source, '')"
RANGES = ("num_range", "time_range", "text_range")


def _half_open(column: str) -> str:
    return (
        f"NOT isempty({column}) AND NOT upper_inc({column})"
        f" AND (lower_inc({column}) OR lower_inf({column}))"
    )


def upgrade() -> None:
    op.execute('CREATE TYPE task_text_range AS RANGE (subtype = text, collation = "C")')
    checks = ",\n".join(
        f"CONSTRAINT {column}_is_half_open CHECK ({_half_open(column)})" for column in RANGES
    )
    apart = ",\n".join(
        f"CONSTRAINT {column}s_do_not_overlap EXCLUDE USING gist"
        f" (task_text_range({OWNER}, {OWNER}, '[]') WITH &&, {column} WITH &&)"
        f" WHERE ({column} IS NOT NULL)"
        for column in RANGES
    )
    op.execute(f"""
    CREATE TABLE task_partition (
        id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        {PROGRAM} NOT NULL CHECK (program_id ~ '^[A-Za-z_][A-Za-z0-9_.:-]{{0,254}}(#[0-9]+)?$'),
        partition_no   integer     NOT NULL CHECK (partition_no >= 0),
        batch_id       bigint,
        step           text,
        kind           text        NOT NULL DEFAULT 'range'
            CHECK (kind IN ('range', 'values', 'hash', 'segment', 'marked')),
        key_type       text        NOT NULL CHECK (key_type IN
            ('integer', 'numeric', 'text', 'uuid', 'date', 'timestamp', 'timestamptz')),
        key_column     text,
        num_range      numrange,
        time_range     tstzrange,
        text_range     task_text_range,
        owns_null      boolean     NOT NULL DEFAULT false,
        modulus        integer     CHECK (modulus > 0),
        source         text,
        view_name      text,
        checksum       text,
        estimated_rows bigint,
        status         text        NOT NULL DEFAULT 'PLANNED' CHECK (status IN
            ('PLANNED', 'RUNNING', 'STOPPED', 'COMPLETED', 'FAILED', 'COMPENSATED', 'ABANDONED')),
        checkpoint     jsonb,
        read_rows      bigint      NOT NULL DEFAULT 0,
        written_rows   bigint      NOT NULL DEFAULT 0,
        skipped_rows   bigint      NOT NULL DEFAULT 0,
        failed_rows    bigint      NOT NULL DEFAULT 0,
        task_id        bigint,
        started_at     timestamptz,
        changed_at     timestamptz NOT NULL DEFAULT statement_timestamp(),
        ended_at       timestamptz,
        error          text,
        CONSTRAINT task_partition_number UNIQUE (program_id, partition_no),
        {checks},
        CONSTRAINT a_range_has_the_type_of_its_key CHECK (
            (num_range IS NULL OR kind IN ('hash', 'segment') OR key_type IN ('integer', 'numeric'))
            AND (time_range IS NULL
                OR (kind = 'range' AND key_type IN ('date', 'timestamp', 'timestamptz')))
            AND (text_range IS NULL OR (kind = 'range' AND key_type IN ('text', 'uuid')))),
        CONSTRAINT a_partition_owns_keys CHECK (
            CASE kind
                WHEN 'range' THEN num_nonnulls(num_range, time_range, text_range) = 1 OR owns_null
                WHEN 'hash' THEN num_range IS NOT NULL OR owns_null
                WHEN 'segment' THEN num_range IS NOT NULL AND source IS NOT NULL
                ELSE num_range IS NULL END),
        CONSTRAINT whole_keys_have_whole_bounds CHECK (
            num_range IS NULL OR (key_type = 'numeric' AND kind = 'range')
            OR (coalesce(lower(num_range) % 1, 0) = 0 AND coalesce(upper(num_range) % 1, 0) = 0)),
        CONSTRAINT bounds_are_finite CHECK (
            isfinite(lower(time_range)) IS NOT FALSE AND isfinite(upper(time_range)) IS NOT FALSE),
        CONSTRAINT a_hash_has_a_modulus CHECK ((kind = 'hash') = (modulus IS NOT NULL)),
        {apart}
    ) WITH (fillfactor = 70, {CHURN})
    """)
    op.execute("""
    CREATE UNIQUE INDEX task_partition_null ON task_partition (program_id, coalesce(source, ''))
        WHERE owns_null
    """)
    op.execute("""
    CREATE INDEX task_partition_batch ON task_partition (batch_id) WHERE batch_id IS NOT NULL
    """)
    op.execute(f"""
    CREATE TABLE task_partition_value (
        {PROGRAM} NOT NULL,
        value        text COLLATE "C" NOT NULL,
        partition_no integer NOT NULL,
        PRIMARY KEY (program_id, value),
        FOREIGN KEY (program_id, partition_no)
            REFERENCES task_partition (program_id, partition_no)
            ON UPDATE CASCADE ON DELETE CASCADE
    )
    """)
    op.execute("""
    CREATE INDEX task_partition_value_of ON task_partition_value (program_id, partition_no)
    """)
    op.execute(f"""
    CREATE TABLE task_marker (
        {PROGRAM} NOT NULL,
        key          text COLLATE "C" NOT NULL,
        state        text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done', 'error')),
        partition_no integer,
        PRIMARY KEY (program_id, key)
    ) WITH (fillfactor = 80, {CHURN})
    """)
    op.execute("""
    CREATE INDEX task_marker_waiting ON task_marker (program_id, key) WHERE state = 'waiting'
    """)
    op.execute("""
    CREATE VIEW task_partitions AS
    SELECT p.id, p.program_id, p.partition_no, p.batch_id, p.step, p.kind, p.key_type, p.key_column,
        coalesce(CAST(lower(p.num_range) AS text), lower(p.text_range),
            to_char(lower(p.time_range) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'))
            AS low_key,
        coalesce(CAST(upper(p.num_range) AS text), upper(p.text_range),
            to_char(upper(p.time_range) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'))
            AS high_key,
        num_nonnulls(p.num_range, p.time_range, p.text_range) = 1 AS has_range,
        ARRAY(SELECT v.value FROM task_partition_value v
              WHERE v.program_id = p.program_id AND v.partition_no = p.partition_no
              ORDER BY v.value) AS "values",
        p.owns_null, p.modulus, p.source, p.view_name, p.checksum, p.estimated_rows, p.status,
        p.checkpoint, p.read_rows, p.written_rows, p.skipped_rows, p.failed_rows, p.task_id,
        p.started_at, p.changed_at, p.ended_at, p.error
    FROM task_partition p
    """)


def downgrade() -> None:
    op.execute("DROP VIEW task_partitions")
    for table in ("task_marker", "task_partition_value", "task_partition"):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP TYPE task_text_range")
