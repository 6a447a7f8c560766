-- Events: what tasks wait for that is no end of another task. Who waits enters the event unsent, and locks it before it looks whether it is sent.
-- Who sends it locks it, too, and then looks who waits. So each waits for the other's commit, and no wake-up is lost. Locks are taken in the
-- order events, groups, tasks; of each kind in that of their keys.
--
-- A wait without a time-out is one of the needs that waits_for of task_pending counts. One with a time-out is not counted: when nothing else is
-- open, it is a date of the task, which the event brings forward. So what is timed out is a task that is due, and the claim knows of no events.
--
-- As those of flows, these functions find rows by their keys, one by one, and join nothing.

CREATE TABLE task_event (  -- Events that were sent, and those that tasks wait for.
    key     text        PRIMARY KEY CHECK (length(key) BETWEEN 1 AND 200),  -- The name that sender and waiting tasks agree on.
    payload jsonb       CHECK (jsonb_typeof(payload) = 'object' AND pg_column_size(payload) <= 8388608),  -- JSON object that was sent with it.
    sent_at timestamptz,  -- When it was sent. Null: nobody has, and tasks wait for it.
    sent_by text,  -- Who sent it, as the sender said.
    why     text  -- The reason that the sender gave.
);
CREATE INDEX task_event_unsent ON task_event (key) WHERE sent_at IS NULL;

CREATE TABLE task_event_wait (  -- Which task waits, or has waited, for which event. A row stays while its task may run again.
    task_id    bigint      NOT NULL,  -- The task; with key the primary key.
    key        text        NOT NULL,  -- The event.
    timeout    interval    CHECK (timeout > '0'),  -- How long it waits, from when nothing else holds the task up. Null: until it is sent.
    since      timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When the wait was entered.
    until      timestamptz,  -- When the time-out comes. Null: there is none, or it has not begun.
    not_before timestamptz,  -- When the task is due if the event comes at once. Null where until is.
    PRIMARY KEY (task_id, key)
);
CREATE INDEX task_event_wait_key ON task_event_wait (key);

-- Enters events, and locks them for who begins to wait for them.
CREATE FUNCTION task_event_lock(keys text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    each text;
BEGIN
    FOR each IN SELECT DISTINCT k.key FROM unnest(keys) AS k(key) ORDER BY 1 LOOP
        LOOP
            INSERT INTO task_event (key) VALUES (each) ON CONFLICT DO NOTHING;
            PERFORM FROM task_event e WHERE e.key = each FOR SHARE;
            EXIT WHEN FOUND;  -- else it was removed in between
        END LOOP;
    END LOOP;
END $$;
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION task_event_lock(text[]) SET search_path TO %I, pg_temp', current_schema);
END $$;
REVOKE ALL ON FUNCTION task_event_lock(text[]) FROM PUBLIC;

-- Enters which of these events, which are locked, tasks wait for that were created in this transaction.
CREATE FUNCTION task_event_enter(tasks bigint[], keys text[], timeouts interval[]) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$
    INSERT INTO task_event_wait (task_id, key, timeout) SELECT w.task_id, w.key, nullif(w.timeout, '0') FROM unnest(tasks, keys, timeouts) AS w(task_id, key, timeout)
$$;
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION task_event_enter(bigint[], text[], interval[]) SET search_path TO %I, pg_temp', current_schema);
END $$;
REVOKE ALL ON FUNCTION task_event_enter(bigint[], text[], interval[]) FROM PUBLIC;

-- The date that a task has because time-outs of unsent events run, or ran until the event ``but`` was sent. Null: none does.
CREATE FUNCTION task_event_date(of_task bigint, expires timestamptz, but text DEFAULT NULL) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT greatest(max(w.not_before), least(max(w.until), expires)) FROM task_event_wait w
    WHERE w.task_id = of_task AND w.until IS NOT NULL
      AND (w.key = but OR (SELECT e.sent_at FROM task_event e WHERE e.key = w.key) IS NULL)
    HAVING count(*) > 0
$$;

-- Begins the time-outs of those of these tasks that wait for nothing else, and puts them off until the last one that runs.
CREATE FUNCTION task_event_begin(tasks bigint[], at timestamptz) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    each record;
    date timestamptz;
BEGIN
    FOR each IN
        SELECT p.id, coalesce(p.held_due_at, p.due_at) AS own_date, p.expires_at FROM task_pending p
        WHERE p.id = ANY(tasks) AND p.state <> 'RUNNING' AND p.waits_for IS NULL ORDER BY p.id FOR NO KEY UPDATE
    LOOP
        UPDATE task_event_wait w SET until = at + w.timeout, not_before = each.own_date
        WHERE w.task_id = each.id AND w.timeout IS NOT NULL AND w.until IS NULL
          AND (SELECT e.sent_at FROM task_event e WHERE e.key = w.key) IS NULL;
        date := task_event_date(each.id, each.expires_at);
        UPDATE task_pending p
        SET due_at = CASE WHEN p.held_due_at IS NULL THEN date ELSE p.due_at END,
            scan_at = CASE WHEN p.held_due_at IS NULL THEN date ELSE p.scan_at END,
            held_due_at = CASE WHEN p.held_due_at IS NOT NULL THEN date END
        WHERE p.id = each.id AND date > each.own_date;
    END LOOP;
END $$;

-- Puts off those of these tasks that do not run: they wait for so many needs, or for their time-outs if that is 0.
CREATE FUNCTION task_put_off(tasks bigint[], numbers integer[]) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    -- A date that is that of a time-out is not the task's own.
    UPDATE task_pending p
    SET waits_for = numbers[array_position(tasks, p.id)] * CASE WHEN p.held_due_at IS NULL THEN 1 ELSE -1 END,
        held_due_at = coalesce((
            SELECT max(w.not_before) FROM task_event_wait w
            WHERE w.task_id = p.id AND coalesce(p.held_due_at, p.due_at) = task_event_date(p.id, p.expires_at)), p.held_due_at, p.due_at),
        due_at = CASE WHEN p.expires_at IS NULL THEN timestamptz '9899-01-01Z' ELSE greatest(p.due_at, p.expires_at) END,
        scan_at = CASE WHEN p.expires_at IS NULL THEN timestamptz '9899-01-01Z' ELSE greatest(p.due_at, p.expires_at) END,
        parked = NULL, parked_kind = NULL, parked_for = NULL
    WHERE p.id = ANY(tasks) AND p.state <> 'RUNNING' AND p.waits_for IS NULL AND numbers[array_position(tasks, p.id)] > 0;
    PERFORM task_event_begin(tasks, statement_timestamp());
END $$;

-- Sends an event, in the transaction of the caller. False: it was sent before, and that one counts.
CREATE FUNCTION task_send_event(key text, payload jsonb DEFAULT '{}', by text DEFAULT '', why text DEFAULT '')
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    at timestamptz := statement_timestamp();
    waiting bigint[];
    part bigint[];
    ids bigint[];
    numbers integer[];
    dates timestamptz[];
    befores timestamptz[];
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'An event is sent at READ COMMITTED: here tasks that began to wait since this transaction''s snapshot would not be woken.'
            USING ERRCODE = 'feature_not_supported', HINT = 'Send it in a transaction of that isolation level.';
    END IF;
    IF (SELECT e.sent_at FROM task_event e WHERE e.key = task_send_event.key) IS NOT NULL THEN
        RETURN false;  -- without a wait for a run that has read it, and holds its lock
    END IF;
    INSERT INTO task_event AS e (key, payload, sent_at, sent_by, why)
    VALUES (task_send_event.key, coalesce(task_send_event.payload, '{}'), at, nullif(task_send_event.by, ''), nullif(task_send_event.why, ''))
    ON CONFLICT (key) DO UPDATE SET payload = excluded.payload, sent_at = excluded.sent_at, sent_by = excluded.sent_by, why = excluded.why
    WHERE e.sent_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    waiting := ARRAY(SELECT w.task_id FROM task_event_wait w WHERE w.key = task_send_event.key ORDER BY w.task_id);
    -- Also of steps that have ended: one that is requeued has this lock when it looks whether the event is sent.
    PERFORM FROM task_group g
    WHERE g.id = ANY(ARRAY(SELECT s.flow_id FROM task_flow_step s WHERE s.task_id = ANY(waiting)))
    ORDER BY g.id FOR NO KEY UPDATE;
    PERFORM FROM task_pending p WHERE p.id = ANY(waiting) AND p.state <> 'RUNNING' ORDER BY p.id FOR NO KEY UPDATE;
    FOR i IN 1 .. cardinality(waiting) BY 500 LOOP  -- a place in an array is found by a look at those before it
        part := waiting[i : i + 499];
        -- Those that count it.
        SELECT array_agg(w.task_id), array_agg(1), array_agg(at + coalesce((
            SELECT s.delay FROM task_flow_step s WHERE s.task_id = w.task_id AND s.ended IS NULL), '0'))
        INTO ids, numbers, dates
        FROM task_event_wait w WHERE w.task_id = ANY(part) AND w.key = task_send_event.key AND w.timeout IS NULL;
        PERFORM task_needs_met(ids, numbers, dates, at);
        -- Those whose date it brings forward, unless they have another date by now.
        SELECT array_agg(t.id), array_agg(t.before), array_agg(greatest(at, t.not_before, t.after)) INTO ids, befores, dates
        FROM (
            SELECT p.id, w.not_before, task_event_date(p.id, p.expires_at, w.key) AS before, task_event_date(p.id, p.expires_at) AS after
            FROM task_event_wait w CROSS JOIN LATERAL (
                SELECT p.id, p.expires_at FROM task_pending p WHERE p.id = w.task_id AND p.state <> 'RUNNING' AND p.waits_for IS NULL OFFSET 0) AS p
            WHERE w.task_id = ANY(part) AND w.key = task_send_event.key AND w.until > at) AS t;
        UPDATE task_pending p
        SET due_at = CASE WHEN p.held_due_at IS NULL THEN dates[array_position(ids, p.id)] ELSE p.due_at END,
            scan_at = CASE WHEN p.held_due_at IS NULL THEN dates[array_position(ids, p.id)] ELSE p.scan_at END,
            held_due_at = CASE WHEN p.held_due_at IS NOT NULL THEN dates[array_position(ids, p.id)] END
        WHERE p.id = ANY(ids) AND p.state <> 'RUNNING' AND p.waits_for IS NULL
          AND coalesce(p.held_due_at, p.due_at) = befores[array_position(ids, p.id)];
    END LOOP;
    RETURN true;
END $$;
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION task_send_event(text, jsonb, text, text) SET search_path TO %I, pg_temp', current_schema);
END $$;
REVOKE ALL ON FUNCTION task_send_event(text, jsonb, text, text) FROM PUBLIC;
