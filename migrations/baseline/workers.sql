-- Who works and who leads; what is counted, told and written down about it.

CREATE TABLE task_worker (  -- One row for each living child: its heartbeat, every third of the lease.
    owner      text        PRIMARY KEY,  -- The name of the child, as in the rows that it runs.
    node       text        NOT NULL,  -- The name of the worker.
    queues     text[]      NOT NULL,  -- What the worker consumes.
    handlers   text[]      NOT NULL,  -- Which task names it knows.
    running    jsonb       NOT NULL DEFAULT '[]',  -- List of {id, name, seconds}, with fraction and note where the handler reports progress; with
            -- attempt, state and details where it calls update_state of Celery.
    started_at timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When the first heartbeat came.
    seen_at    timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When the last heartbeat came. A child that is silent for longer than the lease
            -- counts as gone.
    threads    integer     NOT NULL DEFAULT 1,  -- How many messages the child works on at a time: 1, except in a pool of threads.
    asks       boolean     NOT NULL DEFAULT false,  -- Whether somebody asks for its stacks, and the worker has not seen that yet.
    stacks     text,  -- What its threads and coroutines did when somebody last asked: files, lines and functions, never values. Null: nobody asked,
            -- or it has not answered yet.
    stacks_at  timestamptz  -- When it said so.
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 500, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

CREATE TABLE task_lease (  -- One row for each duty that one process does for all: scan and maintain. A leader saves the others work; nothing depends
        -- on there being only one. Deleting rows does no harm, but notes are lost with them.
    name       text        PRIMARY KEY,  -- The duty.
    holder     text        NOT NULL,  -- Who leads: beat and its host and process, standby and the name of a child, schedule (the messages of another
            -- scheduler) or by hand.
    token      uuid        NOT NULL,  -- Random UUID of the holder; what the holder writes later carries it.
    rank       smallint    NOT NULL,  -- 2 for beat, 1 for a worker that stands in. The higher rank need not wait for the lower one.
    held_since timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When the holder became the leader.
    held_until timestamptz,  -- Renewed about every second. Once it is over anybody may lead. Null: given back.
    done_at    timestamptz,  -- When the duty was last done, by any holder.
    notes      jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(notes) = 'object')  -- For the next holder of scan: when each entry of
            -- beat_schedule last fired.
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100, vacuum_truncate = off);

CREATE TABLE task_pace (  -- How much of a child's time a task of each name takes, as the children measured it. The scan fills messages with 0.4 s of
        -- work by it. Deleting rows does no harm: the next runs measure again. One row for each name that ever ran.
    name       text             PRIMARY KEY,  -- The name of the tasks.
    run_s      double precision NOT NULL CHECK (run_s >= 0),  -- Seconds, at least 0.0002. Of async handlers, and in children with several threads:
            -- the task's part of a time in which others run, too.
    updated_at timestamptz      NOT NULL DEFAULT statement_timestamp()  -- Written after a change of a fifth, at most every 10 s; after a change of
            -- half at once.
);

CREATE TABLE task_count (  -- How many tasks ended how in each minute, hour and day. Deleting rows does no harm but to the history.
    span    smallint    NOT NULL CHECK (span = ANY (ARRAY[1, 60, 1440])),  -- How long the row's time is: 1, 60 or 1440 minutes.
    at      timestamptz NOT NULL,  -- When that time begins, by the database's clock; days are of UTC.
    name    text        NOT NULL,  -- The name of the tasks; (other) are those beyond 500 rows a minute.
    queue   text        NOT NULL,  -- The queue of the tasks.
    outcome smallint    NOT NULL,  -- Number of the outcome: 1 done, 2 skipped, 3 cancelled, 4 expired, 5 failed, 6 retried, 7 released, 8 rescued, 9
            -- snoozed; 11 a write that was refused as its lease was lost, 12 an id of a message that could not be claimed.
    number  bigint      NOT NULL,  -- How many ended so.
    wait_ms bigint      NOT NULL,  -- Sum of the milliseconds from due_at to the start of the run, of those in waits.
    run_ms  bigint      NOT NULL,  -- Sum of the milliseconds that handlers ran, of those in runs.
    waits   bigint[]    NOT NULL,  -- How many waited how long: 25 buckets, of less than 1 ms, then of 2^(n-1) up to 2^n ms; empty ones at the end are
            -- left out.
    runs    bigint[]    NOT NULL,  -- How many ran for how long, in the same buckets.
    exact   boolean     NOT NULL DEFAULT false,  -- Whether the number was taken from the pools, as it was higher there.
    PRIMARY KEY (span, at, name, queue, outcome) INCLUDE (number, wait_ms, run_ms)
) WITH (autovacuum_vacuum_insert_threshold = 2000, autovacuum_vacuum_insert_scale_factor = 0);

CREATE UNLOGGED TABLE task_count_part (  -- Running totals of the last 15 minutes, for the leader to add up. Unlogged: a crash of the server empties
        -- it.
    at         timestamptz NOT NULL,  -- The minute, by the database's clock.
    slot       text        NOT NULL,  -- Who counted: one process, or one statement of an operator or the leader.
    name       text        NOT NULL,  -- The name of the tasks; (other) are those beyond 500 rows a minute.
    queue      text        NOT NULL,  -- The queue of the tasks.
    outcome    smallint    NOT NULL,  -- Number of the outcome: 1 done, 2 skipped, 3 cancelled, 4 expired, 5 failed, 6 retried, 7 released, 8 rescued,
            -- 9 snoozed; 11 a write that was refused as its lease was lost, 12 an id of a message that could not be claimed.
    number     bigint      NOT NULL,  -- How many ended so.
    wait_ms    bigint      NOT NULL,  -- Sum of the milliseconds from due_at to the start of the run, of those in waits.
    run_ms     bigint      NOT NULL,  -- Sum of the milliseconds that handlers ran, of those in runs.
    waits      bigint[]    NOT NULL,  -- How many waited how long: 25 buckets, of less than 1 ms, then of 2^(n-1) up to 2^n ms; empty ones at the end
            -- are left out.
    runs       bigint[]    NOT NULL,  -- How many ran for how long, in the same buckets.
    written_at timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When the row was written last.
    PRIMARY KEY (at, slot, name, queue, outcome)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2);

CREATE TABLE task_total (  -- What was counted since counting began, for metrics. Deleting a row begins its total anew, nothing else.
    id      bigint      GENERATED ALWAYS AS IDENTITY,  -- In the order in which they were seen first: the first keep a row.
    name    text        NOT NULL,  -- The name of the tasks; (other) are those beyond 1,000 rows.
    queue   text        NOT NULL,  -- The queue of the tasks.
    outcome smallint    NOT NULL,  -- Number of the outcome: 1 done, 2 skipped, 3 cancelled, 4 expired, 5 failed, 6 retried, 7 released, 8 rescued, 9
            -- snoozed; 11 a write that was refused as its lease was lost, 12 an id of a message that could not be claimed.
    until   timestamptz NOT NULL,  -- Days before this are in the sums; all rows say the same.
    number  bigint      NOT NULL DEFAULT 0,  -- How many ended so.
    wait_ms bigint      NOT NULL DEFAULT 0,  -- Sum of the milliseconds that those in waits waited.
    run_ms  bigint      NOT NULL DEFAULT 0,  -- Sum of the milliseconds that those in runs ran.
    waits   bigint[]    NOT NULL DEFAULT '{}',  -- How many waited how long, in the buckets of task_count.
    runs    bigint[]    NOT NULL DEFAULT '{}',  -- How many ran for how long, in the same buckets.
    PRIMARY KEY (name, queue, outcome)
);

CREATE TABLE task_fingerprint (  -- One row for each cause of errors that somebody has entered or marked as known. Deleting rows loses marks and first
        -- sightings, nothing else.
    fingerprint bytea       PRIMARY KEY CHECK (length(fingerprint) = 8),  -- As in task_error.
    kind        text        NOT NULL,  -- Class of the exception, or a word of ours.
    message     text        NOT NULL,  -- The message without its values.
    frames      text[]      NOT NULL DEFAULT '{}',  -- Frames of the user's code as module:function, the innermost last.
    first_at    timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When the first task of it failed, as far as is known.
    known_by    text,  -- Who marked it as known. Null: nobody.
    known_until timestamptz,  -- When the mark ends by itself. Null: never.
    note        text  -- What whoever marked it said.
);

CREATE TABLE task_alert (  -- One row for each alert that is open or was. Deleting the row of an open one sends it again, nothing else.
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- Given by the database.
    key            text        NOT NULL,  -- What it is about: at most one open row of each.
    fact           text        NOT NULL,  -- What was seen when it was opened; never a payload.
    advice         text        NOT NULL,  -- What to do.
    event          boolean     NOT NULL DEFAULT false,  -- Whether it happened once and so has no end.
    opened_at      timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When it was seen first.
    closed_at      timestamptz,  -- When it was seen to be over. Null: it is open.
    opened_sent_at timestamptz,  -- When the message that it began was taken.
    closed_sent_at timestamptz,  -- When the message that it is over was taken.
    sending_until  timestamptz NOT NULL DEFAULT '-infinity',  -- Until when one watcher alone may send; then another may, as that one has died or was
            -- refused.
    opened_to      text[]      NOT NULL DEFAULT '{}',  -- Which channels took the message that it began: log, webhook, mail.
    closed_to      text[]      NOT NULL DEFAULT '{}',  -- Which channels took the message that it is over.
    tries          smallint    NOT NULL DEFAULT 0  -- How often its message was reserved. Each refusal doubles the wait, up to ten minutes.
);
CREATE UNIQUE INDEX task_alert_open ON task_alert (key) WHERE closed_at IS NULL;

CREATE TABLE task_alert_look (  -- One row: who looks for alerts just now, and when somebody last did. Deleting it lets the next one look at once.
    one        boolean     DEFAULT true PRIMARY KEY,  -- True: there is one row at most.
    holder     text        NOT NULL,  -- Who looks, or looked last.
    token      uuid        NOT NULL,  -- Of this look: an older one is not written down.
    held_until timestamptz,  -- Until when nobody else looks. Null: nobody looks.
    done_at    timestamptz,  -- When what somebody saw was last written down.
    CONSTRAINT one_row CHECK (one)
);

CREATE TABLE task_audit (  -- What operators did, from the shell, by remote control or from Python: one line for each action, written in the same
        -- transaction; of a bulk, one that opens it and one for each step. No role of tasks-app grants may change or delete a line. The owner deletes
        -- what is old enough.
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- Of the line that opens a bulk: its token.
    at       timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When it was done. For a bulk: the instant from which ages are counted.
    role     text        NOT NULL DEFAULT CURRENT_USER,  -- Who did it, as the database knows them.
    who      text        NOT NULL DEFAULT '' CHECK (length(who) <= 200),  -- Who did it, in their own words: user and host of the shell, remote
            -- control, by= in Python.
    action   text        NOT NULL CHECK (length(action) BETWEEN 1 AND 100),  -- cancel, requeue, edit, pause, resume, prune, pruned, schedule add and
            -- so on.
    what     jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(what) = 'object'),  -- The selection, the queue or the schedule.
    patch    jsonb       CHECK (jsonb_typeof(patch) = 'object'),  -- Of an edit: what was merged into the payloads, values included.
    bulk     bigint,  -- Of a step: the line that opened the bulk.
    until    bigint,  -- Of the line that opens a bulk: ids above this one are not meant.
    after    bigint,  -- Of a bulk: up to which id all is done. Null: the bulk is over.
    number   bigint      NOT NULL DEFAULT 0 CHECK (number >= 0),  -- To how many tasks it was done.
    ids      bigint[]    NOT NULL DEFAULT '{}' CHECK (cardinality(ids) <= 500),  -- To which tasks, at most 500 of them; of the steps of a bulk, all.
    answers  jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(answers) = 'object'),  -- How many tasks met which answer.
    left_out jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(left_out) = 'object')  -- Ids that were meant and left as they are, by reason.
            -- Never a payload.
);
CREATE INDEX task_audit_bulk ON task_audit (bulk, id) WHERE bulk IS NOT NULL;
