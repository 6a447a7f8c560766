-- Logical locks: who holds what, who waits, and what became of waits.

CREATE SEQUENCE task_lock_fence;

CREATE TABLE task_lock (  -- One row for each resource that somebody has asked for. Each decision about the resource locks the row for a moment. A
        -- resource that nobody asked for during seven days is removed.
    resource text        COLLATE "C" PRIMARY KEY CHECK (length(resource) BETWEEN 1 AND 255),  -- The name of the resource. Ordered by bytes, which is
            -- the order in which groups are taken.
    most     integer     CHECK (most >= 0),  -- An operator's word on how many may hold a counted lock. Null: the code says it.
    grants   bigint      NOT NULL DEFAULT 0,  -- How often a lock on it was granted.
    denials  bigint      NOT NULL DEFAULT 0,  -- How often somebody who did not wait was denied.
    used_at  timestamptz NOT NULL DEFAULT statement_timestamp()  -- When it was last asked for.
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1, vacuum_truncate = off);

CREATE TABLE task_lock_holder (  -- Who holds a group of locks, or waits for one. Deleting a row frees the group; its holder is told.
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- The place in the line.
    token       uuid        NOT NULL UNIQUE,  -- Random UUID made by the holder. Code that knows it may release the group.
    who         text        NOT NULL CHECK (length(who) <= 300),  -- The name of the task, or of the process.
    task_id     bigint,  -- The task whose run holds the group, or that is parked for it. Null: code that is no task.
    attempt     integer,  -- The attempt of that run; of a parked task, its last one.
    lease_token uuid,  -- The lease token of that run: its locks end with it. Of a parked task: any.
    asked_at    timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When the group was asked for.
    granted_at  timestamptz,  -- When it was granted. Null: it still waits.
    fence       bigint,  -- Rises with every grant. Null: it still waits.
    lease_until timestamptz NOT NULL,  -- After this instant anybody who wants one of the resources may take the group over.
    CONSTRAINT a_run_has_all_of_its_fence CHECK (num_nulls(task_id, attempt, lease_token) = ANY (ARRAY[0, 3])),
    CONSTRAINT held_with_a_fence CHECK ((fence IS NULL) = (granted_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1, vacuum_truncate = off);
CREATE INDEX task_lock_holder_place ON task_lock_holder (task_id) WHERE fence IS NULL AND task_id IS NOT NULL;

CREATE TABLE task_lock_part (  -- The resources of each group of locks.
    resource   text    COLLATE "C" NOT NULL,  -- The name of the resource.
    holder_id  bigint  NOT NULL REFERENCES task_lock_holder(id) ON DELETE CASCADE,  -- The group. Its rows here go with it.
    mode       text    NOT NULL CHECK (mode IN ('exclusive', 'shared', 'counted')),  -- exclusive, shared or counted.
    most       integer CHECK (most >= 1),  -- How many may hold a counted lock. Null in the other modes.
    blocked_by text,  -- Who was in the way when it was asked for. Null: nobody.
    PRIMARY KEY (resource, holder_id),
    CONSTRAINT only_what_is_counted_has_a_number CHECK ((mode = 'counted') = (most IS NOT NULL))
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1, vacuum_truncate = off);
CREATE INDEX task_lock_part_holder ON task_lock_part (holder_id);

CREATE TABLE task_lock_wait (  -- What became of waits for locks that somebody else held, for seven days.
    resource   text        COLLATE "C" NOT NULL,  -- The resource that was taken.
    mode       text        NOT NULL,  -- exclusive, shared or counted.
    outcome    text        NOT NULL CHECK (outcome IN ('granted', 'timed_out', 'denied', 'vanished', 'taken_over')),
            -- granted in the end; timed_out; denied (one row for each task, counted in times); vanished (the one who waited was gone); taken_over
            -- (the lease of a holder had ended: who lost the group, blocked_by took it).
    who        text        NOT NULL,  -- Who waited; of taken_over, who lost the group.
    task_id    bigint,  -- The task that waited. Null: code that is no task.
    blocked_by text,  -- Who was in the way.
    times      integer     NOT NULL DEFAULT 1,  -- How often.
    asked_at   timestamptz NOT NULL,  -- When it was asked for; of denials, the first time.
    ended_at   timestamptz NOT NULL  -- When the wait was over; of denials, the last time.
);
ALTER TABLE task_lock_wait REPLICA IDENTITY FULL;
CREATE UNIQUE INDEX task_lock_wait_denied ON task_lock_wait (task_id, resource) WHERE outcome = 'denied';
CREATE INDEX task_lock_wait_ended ON task_lock_wait (ended_at);
CREATE INDEX task_lock_wait_task ON task_lock_wait (task_id, ended_at) WHERE task_id IS NOT NULL;

CREATE VIEW task_locks AS  -- Which locks are held and waited for, in a view with one row for each resource.
SELECT p.resource, p.mode,
    CASE WHEN h.fence IS NULL THEN 'waiting' ELSE 'held' END AS state,  -- held or waiting.
    h.who,
    h.task_id,  -- The task whose run it is. Null: code that is no task.
    h.asked_at,  -- When it was asked for.
    h.granted_at,
    h.lease_until,  -- Until when it holds.
    h.fence, h.token,
    CASE WHEN h.fence IS NULL THEN p.blocked_by END AS blocked_by  -- Who was in the way when the one who waits came.
FROM task_lock_part p JOIN task_lock_holder h ON h.id = p.holder_id;

CREATE VIEW task_lock_report AS  -- How much each resource is contended for, in a view, as far back as task_lock_wait reaches.
SELECT r.resource, r.most, r.grants, r.denials,
    coalesce(w.waits, 0) AS waits,  -- Waits that ended with a grant or a time-out.
    coalesce(w.timed_out, 0) AS timed_out,  -- Waits that ended with a time-out.
    coalesce(w.vanished, 0) AS vanished,  -- Waits whose process was gone before they ended.
    coalesce(w.taken_over, 0) AS taken_over,  -- How often a lease had ended and the group was taken over.
    coalesce(w.waited, interval '0') AS waited,  -- The time that all waits took together.
    w.waited_95,  -- 95 of 100 waits were shorter.
    w.waited_most,  -- The longest wait.
    coalesce(n.held, 0) AS held_now,  -- How many hold it now.
    coalesce(n.waiting, 0) AS waiting_now,  -- How many wait for it now.
    r.used_at
FROM task_lock r
LEFT JOIN (
    SELECT w.resource, count(*) FILTER (WHERE w.waited IS NOT NULL) AS waits,
        count(*) FILTER (WHERE w.outcome = 'timed_out') AS timed_out,
        count(*) FILTER (WHERE w.outcome = 'vanished') AS vanished,
        count(*) FILTER (WHERE w.outcome = 'taken_over') AS taken_over,
        sum(w.waited) AS waited, max(w.waited) AS waited_most,
        percentile_cont(0.95) WITHIN GROUP (ORDER BY w.waited) AS waited_95
    FROM (SELECT *, CASE WHEN outcome IN ('granted', 'timed_out') THEN ended_at - asked_at END AS waited FROM task_lock_wait) AS w
    GROUP BY w.resource
) AS w USING (resource)
LEFT JOIN (
    SELECT p.resource, count(h.fence) AS held, count(*) - count(h.fence) AS waiting
    FROM task_lock_part p JOIN task_lock_holder h ON h.id = p.holder_id
    GROUP BY p.resource
) AS n USING (resource);
