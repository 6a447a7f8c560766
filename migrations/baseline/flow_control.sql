-- What lets tasks run or holds them back: queues, windows, fair shares, limits, breakers.

CREATE TABLE task_queue (  -- One row for each queue that has settings. Change it with tasks-app queues set.
    queue           text     PRIMARY KEY CHECK (queue ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$'),  -- The name of the queue.
    running_below   integer  CHECK (running_below > 0),  -- The queue runs only while fewer tasks than this run in other queues.
    waiting_below   interval CHECK (waiting_below > '00:00:00' AND waiting_below <= '3660 days'),  -- The queue runs only while no due task of another
            -- queue has waited for so long.
    only_while      text     CHECK (only_while ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$'),  -- The queue runs only while the load gate of this name, a
            -- function of the application, says so.
    shut            text     CHECK (shut IN ('running', 'waiting', 'load')),  -- What the last scan found: running or waiting tasks of other queues, or
            -- that the load gate says no. Null: the gate is open.
    retry           text,  -- The retry policy of tasks that have none of their own.
    max_attempts    smallint CHECK (max_attempts > 0),  -- The attempts of tasks that say nothing about them.
    timeout_ms      integer  CHECK (timeout_ms > 0),  -- The timeout of tasks that have none of their own, in milliseconds.
    hard_timeout_ms integer  CHECK (hard_timeout_ms > 0),  -- The hard timeout of tasks that have none of their own, in milliseconds.
    CONSTRAINT only_a_gate_is_shut CHECK (shut IS NULL OR num_nonnulls(running_below, waiting_below, only_while) > 0)
);

CREATE TABLE task_queue_pause (  -- One row for each queue that an operator has paused. Nothing of it is published or claimed.
    queue     text        PRIMARY KEY,  -- The name of the queue; * means every queue.
    since     timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When it was paused.
    reason    text        NOT NULL DEFAULT '',  -- Why, in the operator's words.
    resume_at timestamptz CHECK (resume_at BETWEEN '1900-01-01 00:00:00+00' AND '9900-01-01 00:00:00+00')  -- When the pause ends by itself. Null:
            -- when somebody ends it. A row that is over does nothing.
);

CREATE TABLE task_queue_window (  -- When a queue runs. A queue without a window runs always.
    queue    text       NOT NULL CHECK (queue ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$'),  -- The name of the queue.
    days     smallint[] NOT NULL CHECK (cardinality(days) > 0 AND days <@ '{1,2,3,4,5,6,7}'),
            -- On which days the window opens: 1 is Monday, 7 is Sunday.
    opens    time       NOT NULL CHECK (opens < '24:00:00'::time),  -- A time of the day.
    closes   time       NOT NULL,  -- A time of the day. Not later than opens: on the next day. 24:00 is the end of the day.
    zone     text       NOT NULL,  -- The time zone of both times.
    calendar text       REFERENCES task_calendar(name),  -- The window does not open on the days of this calendar.
    CONSTRAINT zone_is_known CHECK (('2000-01-01 00:00:00+00' AT TIME ZONE zone) IS NOT NULL)
);
ALTER TABLE task_queue_window REPLICA IDENTITY FULL;

CREATE TABLE task_queue_fair (  -- One row for each fair queue.
    queue      text        PRIMARY KEY,  -- The name of the queue.
    weights    jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(weights) = 'object'),  -- Weights by fair key. A key that is missing here has
            -- weight 1.
    changed_by text        NOT NULL DEFAULT CURRENT_USER,  -- The database role that changed it last.
    changed_at timestamptz NOT NULL DEFAULT statement_timestamp()  -- When it was changed last.
);

CREATE TABLE task_gate (  -- One row for each order key, and for each queue, name or limit key with a limit, that tasks came to lately. A claim locks
        -- the row while it counts the tasks that run; that number is stored nowhere. Deleting a row does no harm, but fills its bucket.
    gate      text             PRIMARY KEY,  -- order KEY, limit queue NAME, limit name NAME or limit key KEY. The same text stands in parked of the
            -- tasks that the gate holds back.
    look_at   timestamptz,  -- When somebody looks again whether a task can go on. Null: no task is held back.
    tokens    double precision,  -- What was left in the bucket of the rate at filled_at. Null: the bucket is full.
    filled_at timestamptz,  -- When tokens was computed.
    CONSTRAINT a_bucket_has_its_time CHECK ((tokens IS NULL) = (filled_at IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100, vacuum_truncate = off);
CREATE INDEX task_gate_look ON task_gate (look_at) WHERE look_at IS NOT NULL;

CREATE TABLE task_limit (  -- What operators allow: one row for each queue, name or kind of limit key. Change it with tasks-app limits, which also
        -- looks at the tasks that wait.
    kind       text        NOT NULL CHECK (kind IN ('queue', 'name', 'key')),  -- queue, name or key; with target the primary key.
    target     text        NOT NULL CHECK (length(target) BETWEEN 1 AND 255),  -- Which one. A key that ends in * means each key that begins so, for
            -- itself.
    most       integer     CHECK (most >= 0),  -- How many run at a time. Null: any number.
    rate       integer     CHECK (rate > 0),  -- How many start in each period. Null: any number.
    period     interval    CHECK (period BETWEEN '00:00:00.001' AND '366 days'),  -- The period of the rate.
    burst      integer     CHECK (burst > 0),  -- How many may start at once after a quiet time.
    changed_by text        NOT NULL DEFAULT CURRENT_USER,  -- The database role that changed it last.
    changed_at timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When it was changed last.
    PRIMARY KEY (kind, target),
    CONSTRAINT something_is_limited CHECK (num_nonnulls(most, rate) > 0 AND (num_nonnulls(rate, period, burst) = ANY (ARRAY[0, 3])))
);

CREATE TABLE task_breaker (  -- One row for each dependency that a handler declared: the state of its circuit breaker. Change it with tasks-app
        -- breakers.
    dependency  text             PRIMARY KEY CHECK (dependency ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$'),  -- The name of the dependency.
    names       text[]           NOT NULL,  -- The handlers that depend on it. Claims read this while the breaker is not closed.
    ratio       double precision NOT NULL CHECK (ratio > 0 AND ratio <= 1),  -- The share of failed calls that opens the breaker.
    least       integer          NOT NULL CHECK (least > 0),  -- How many calls there must be before the share counts.
    "window"    interval         NOT NULL CHECK ("window" >= '00:00:01' AND "window" <= '1 day'),  -- How long a call counts.
    open_for    interval         NOT NULL CHECK (open_for BETWEEN '00:00:01' AND '1 day'),  -- How long the breaker stays open before it probes.
    probes      integer          NOT NULL CHECK (probes BETWEEN 1 AND 1000),  -- How many tasks it lets through to try.
    state       text             NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'probing', 'ramping')),
            -- closed, open, probing or ramping.
    mode        text             NOT NULL DEFAULT 'auto' CHECK (mode IN ('auto', 'open', 'closed')),  -- auto, or an operator's word (open, closed)
            -- that no outcome changes.
    since       timestamptz      NOT NULL DEFAULT statement_timestamp(),  -- When the breaker came into this state.
    look_at     timestamptz,  -- When the scan looks at it next. Null: when a child reports something.
    let_through integer          NOT NULL DEFAULT 0,  -- The probes of this round; or how many tasks were let through last while it ramps.
    let_at      timestamptz,  -- When they were let through.
    reason      text             NOT NULL DEFAULT ''  -- Why the breaker is in this state.
);

CREATE TABLE task_breaker_count (  -- How calls ended, summed over a twentieth of the breaker's window. Deleting rows does no harm.
    dependency text        NOT NULL REFERENCES task_breaker(dependency) ON DELETE CASCADE,  -- The name of the dependency.
    at         timestamptz NOT NULL,  -- When this twentieth began.
    good       integer     NOT NULL,  -- Calls that succeeded.
    bad        integer     NOT NULL,  -- Calls that failed.
    PRIMARY KEY (dependency, at)
);

CREATE TABLE task_breaker_held (  -- Tasks that a breaker holds back; their parked_kind is breaker. A held task that is missing here is looked at
        -- again after a day.
    dependency text     NOT NULL REFERENCES task_breaker(dependency) ON DELETE CASCADE,  -- The name of the dependency.
    let        boolean  NOT NULL DEFAULT false,  -- True: the task was let through, and may run although the breaker is not closed.
    priority   smallint NOT NULL,  -- The priority of the task.
    task_id    bigint   NOT NULL,  -- The task.
    PRIMARY KEY (dependency, let, priority, task_id)
);
