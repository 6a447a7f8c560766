-- Flows: groups whose members, the steps, have needs. A step with open needs is a task whose date is put off (waits_for in task_pending); the
-- statement that ends a step calls task_flow_step_ended(), so effect, outcome and the release of what waits for it are one commit.
--
-- Who calls these functions has locked the flow's row in task_group. Each of their statements sees what was committed before that. They join
-- nothing, and find rows by their keys: a session keeps their plans, and that of a join depends on sizes that were guessed while the pool was empty.

CREATE TABLE task_flow_step (  -- The steps of flows. They go with their group.
    flow_id  bigint      NOT NULL REFERENCES task_group(id) ON DELETE CASCADE,  -- The flow, a row of task_group; with step the primary key.
    step     text        NOT NULL CHECK (length(step) BETWEEN 1 AND 100),  -- Its name, unique in its flow.
    task_id  bigint      NOT NULL CONSTRAINT task_flow_step_task_id UNIQUE,  -- Its task.
    task_name text       NOT NULL,  -- The name of its task.
    delay    interval,  -- How long it still waits when its needs are met. Null: it does not.
    ended    text        CHECK (ended IN ('success', 'failure', 'unneeded')),  -- How it ended: success (SUCCEEDED, SKIPPED), failure (FAILED, CANCELLED,
            -- EXPIRED) or unneeded (it can never start). Null: it has not.
    result   jsonb,  -- A copy of its task's result, which stays when the completed pool is pruned.
    ended_at timestamptz,  -- When it ended.
    undo     jsonb,  -- The row of task_pending, without a payload, of the task that undoes it. Null: there is none.
    PRIMARY KEY (flow_id, step)
) WITH (fillfactor = 70);

CREATE TABLE task_flow_need (  -- What steps wait for.
    flow_id bigint NOT NULL REFERENCES task_group(id) ON DELETE CASCADE,  -- The flow; with step and needs the primary key.
    step    text   NOT NULL,  -- The step that waits.
    needs   text   NOT NULL,  -- The step that it waits for.
    after   text   NOT NULL CHECK (after IN ('success', 'failure', 'end')),  -- Which end of that step it waits for.
    PRIMARY KEY (flow_id, step, needs)
);
CREATE INDEX task_flow_need_needs ON task_flow_need (flow_id, needs);

-- Enters the steps of a flow, tasks that were created in this transaction, and puts off those with needs until these are met.
CREATE FUNCTION task_flow_enter(
    flow bigint, steps text[], tasks bigint[], names text[], delays interval[], undoes text[], waiting text[], needs text[], after text[]
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO task_flow_step (flow_id, step, task_id, task_name, delay, undo)
    SELECT flow, s.step, s.task_id, s.task_name, nullif(s.delay, '0'), nullif(s.undo, '')::jsonb
    FROM unnest(steps, tasks, names, delays, undoes) AS s(step, task_id, task_name, delay, undo);
    INSERT INTO task_flow_need (flow_id, step, needs, after)
    SELECT flow, n.* FROM unnest(waiting, task_flow_enter.needs, task_flow_enter.after) AS n(step, needs, after);
    PERFORM task_flow_put_off(flow, waiting || ARRAY(
        SELECT t.step FROM unnest(steps, tasks) AS t(step, task_id)
        WHERE (SELECT true FROM task_event_wait w WHERE w.task_id = t.task_id LIMIT 1)));
END $$;
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION task_flow_enter(bigint, text[], bigint[], text[], interval[], text[], text[], text[], text[]) SET search_path TO %I, pg_temp', current_schema);
END $$;
REVOKE ALL ON FUNCTION task_flow_enter(bigint, text[], bigint[], text[], interval[], text[], text[], text[], text[]) FROM PUBLIC;

-- Puts off those of these steps that have not ended, do not run and have open needs. A need is open until its step has ended; one of a success stays
-- so after a failure, which can be mended. One that can never be met is not: who requeues a step that was skipped, or cancelled, wants it to run.
-- An event is one until it is sent; time-outs begin where nothing else is open.
CREATE FUNCTION task_flow_put_off(flow bigint, steps text[]) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    ids bigint[];
    numbers integer[];
BEGIN
    SELECT array_agg(s.task_id), array_agg(n.number) INTO ids, numbers
    FROM (
        SELECT n.step, sum(n.number)::integer AS number FROM (
            SELECT n.step, 1 AS number FROM task_flow_need n CROSS JOIN LATERAL (
                SELECT FROM task_flow_step e
                WHERE e.flow_id = flow AND e.step = n.needs AND (e.ended IS NULL OR e.ended = 'failure' AND n.after = 'success') OFFSET 0) AS e
            WHERE n.flow_id = flow AND n.step = ANY(steps)
            UNION ALL
            SELECT s.step, CASE WHEN w.timeout IS NULL THEN 1 ELSE 0 END FROM task_flow_step s CROSS JOIN LATERAL (
                SELECT w.timeout FROM task_event_wait w
                WHERE w.task_id = s.task_id AND (SELECT e.sent_at FROM task_event e WHERE e.key = w.key) IS NULL OFFSET 0) AS w
            WHERE s.flow_id = flow AND s.step = ANY(steps)) AS n
        GROUP BY n.step) AS n
    CROSS JOIN LATERAL (
        SELECT s.task_id FROM task_flow_step s WHERE s.flow_id = flow AND s.step = n.step AND s.ended IS NULL OFFSET 0) AS s;
    PERFORM task_put_off(ids, numbers);
END $$;

-- Counts needs of tasks that are met, each as often as ``numbers`` says, and releases those that have no other. Yields released tasks, with the
-- seconds until they are due.
CREATE FUNCTION task_needs_met(ids bigint[], numbers integer[], dates timestamptz[], at timestamptz)
RETURNS TABLE (id bigint, queue text, wait_s float8) LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    timed bigint[] := ARRAY(SELECT w.task_id FROM task_event_wait w WHERE w.task_id = ANY(ids) AND w.timeout IS NOT NULL);
BEGIN
    RETURN QUERY
    UPDATE task_pending p
    SET waits_for = nullif(p.waits_for - sign(p.waits_for)::integer * numbers[array_position(ids, p.id)], 0),
        due_at = CASE WHEN p.waits_for = numbers[array_position(ids, p.id)]
            THEN greatest(dates[array_position(ids, p.id)], p.held_due_at) ELSE p.due_at END,
        scan_at = CASE WHEN p.waits_for = numbers[array_position(ids, p.id)]
            THEN greatest(dates[array_position(ids, p.id)], p.held_due_at) ELSE p.scan_at END,
        held_due_at = CASE WHEN p.waits_for = numbers[array_position(ids, p.id)] THEN NULL
            WHEN -p.waits_for = numbers[array_position(ids, p.id)]
            THEN greatest(dates[array_position(ids, p.id)], p.held_due_at) ELSE p.held_due_at END
    WHERE p.id = ANY(ids) AND p.state <> 'RUNNING' AND p.waits_for IS NOT NULL
    RETURNING p.id, p.queue, CASE WHEN p.enabled AND p.fair_key IS NULL AND p.held_due_at IS NULL AND p.id <> ALL (timed)
        THEN extract(epoch FROM p.due_at - at)::float8 END;
    IF timed <> '{}' THEN
        PERFORM task_event_begin(timed, at);
    END IF;
END $$;

-- Puts off a task that its run put back until its needs are met; if none is open, it stays due. The statement that moves its row to PENDING calls this.
CREATE FUNCTION task_put_back(of_task bigint) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    of_step task_flow_step;
    keys text[];
    locked integer;
BEGIN
    SELECT * INTO of_step FROM task_flow_step s WHERE s.task_id = of_task AND s.ended IS NULL;
    IF FOUND THEN
        PERFORM task_flow_put_off(of_step.flow_id, ARRAY[of_step.step]);
        UPDATE task_flow_step s SET delay = NULL WHERE s.task_id = of_task AND s.delay IS NOT NULL;  -- it counted before the first run
        RETURN;
    END IF;
    -- No flow is locked here, nor that of a step that was requeued after its flow had succeeded. Who sends an event of it now may have met it as
    -- it ran: so it runs again, and waits for who sends.
    keys := ARRAY(SELECT w.key FROM task_event_wait w WHERE w.task_id = of_task);
    PERFORM FROM task_event e WHERE e.key = ANY(keys) ORDER BY e.key FOR SHARE SKIP LOCKED;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked = cardinality(keys) THEN
        PERFORM task_put_off(ARRAY[of_task], ARRAY[(
            SELECT count(*) FROM task_event_wait w
            WHERE w.task_id = of_task AND w.timeout IS NULL AND (SELECT e.sent_at FROM task_event e WHERE e.key = w.key) IS NULL)::integer]);
    END IF;
END $$;

-- Adds the step that undoes a flow, once; it creates a step for each that has succeeded and can be undone. From now on a failure gives up nothing: it
-- stands until it is mended. Yields the new task, as the next function does.
CREATE FUNCTION task_flow_undo(of_flow bigint, at timestamptz)
RETURNS TABLE (id bigint, queue text, wait_s float8) LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    of_queue text;
    of_key text;
    of_task bigint;
BEGIN
    UPDATE task_group g SET when_failed = 'wait' WHERE g.id = of_flow;
    SELECT s.undo -> 'row' -> 'terms' ->> 'queue', s.undo -> 'row' ->> 'biz_key' INTO of_queue, of_key FROM task_flow_step s
    WHERE s.flow_id = of_flow AND s.undo IS NOT NULL ORDER BY s.task_id + 0 LIMIT 1;
    IF of_queue IS NULL OR EXISTS (SELECT FROM task_flow_step s WHERE s.flow_id = of_flow AND s.step = 'undo') THEN
        RETURN;
    END IF;
    INSERT INTO task_pending (name, queue, biz_key, batch_id, due_at, scan_at, created_at)
    VALUES ('tasks_app.undo', of_queue, of_key, of_flow, at, at, at) RETURNING task_pending.id INTO of_task;
    INSERT INTO task_flow_step (flow_id, step, task_id, task_name) VALUES (of_flow, 'undo', of_task, 'tasks_app.undo');
    INSERT INTO task_group_ids (group_id, no, ids)
    SELECT of_flow, coalesce(max(i.no) + 1, 0), ARRAY[of_task] FROM task_group_ids i WHERE i.group_id = of_flow;
    UPDATE task_group g SET total = g.total + 1 WHERE g.id = of_flow;
    RETURN QUERY SELECT of_task, of_queue, 0::float8;
END $$;

-- Records the end of a step and releases what waited for it. Yields released tasks that are due, with the seconds until they are.
CREATE FUNCTION task_flow_step_ended(of_task bigint, its_state text, its_result jsonb, at timestamptz)
RETURNS TABLE (id bigint, queue text, wait_s float8) LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    of_flow bigint;
    how text := CASE WHEN its_state IN ('SUCCEEDED', 'SKIPPED') THEN 'success' ELSE 'failure' END;
    ended_steps text[];
    on_failure text;
    others text[] := '{}';  -- Those that a failure cancels.
    hopeless text[];
    ids bigint[];
    numbers integer[];
    dates timestamptz[];
BEGIN
    UPDATE task_flow_step s SET ended = how, result = its_result, ended_at = at
    WHERE s.task_id = of_task AND s.ended IS NULL
    RETURNING s.flow_id, ARRAY[s.step] INTO of_flow, ended_steps;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT g.when_failed INTO on_failure FROM task_group g WHERE g.id = of_flow;
    IF how = 'failure' AND on_failure IN ('cancel', 'undo') THEN
        others := ARRAY(
            SELECT s.step FROM task_flow_step s
            WHERE s.flow_id = of_flow AND s.ended IS NULL
              AND s.step <> ALL (ARRAY(SELECT n.step FROM task_flow_need n WHERE n.flow_id = of_flow AND n.after <> 'success')));
        -- One that ends may have its row, and wait for our flow: it is not asked.
        UPDATE task_pending p SET cancel_requested_at = coalesce(p.cancel_requested_at, at)
        WHERE p.id = ANY(ARRAY(
            SELECT r.id FROM task_pending r
            WHERE r.state = 'RUNNING' AND r.batch_id = of_flow
              AND r.id = ANY(ARRAY(SELECT s.task_id FROM task_flow_step s WHERE s.flow_id = of_flow AND s.step = ANY(others)))
            FOR NO KEY UPDATE SKIP LOCKED));
    END IF;
    IF how = 'failure' AND on_failure = 'undo' THEN
        RETURN QUERY SELECT * FROM task_flow_undo(of_flow, at);
    END IF;
    LOOP
        -- Needs that are met now.
        SELECT array_agg(s.task_id), array_agg(n.number), array_agg(at + coalesce(s.delay, '0')) INTO ids, numbers, dates
        FROM (
            SELECT n.step, count(*)::integer AS number FROM task_flow_need n
            WHERE n.flow_id = of_flow AND n.needs = ANY(ended_steps) AND n.after IN ('end', how) GROUP BY n.step) AS n
        CROSS JOIN LATERAL (
            SELECT s.task_id, s.delay FROM task_flow_step s
            WHERE s.flow_id = of_flow AND s.step = n.step AND s.ended IS NULL OFFSET 0) AS s;
        RETURN QUERY SELECT * FROM task_needs_met(ids, numbers, dates, at);
        -- Steps that can never start: the scan skips them, which counts as no failure.
        hopeless := others || ARRAY(
            SELECT n.step FROM task_flow_need n
            WHERE n.flow_id = of_flow AND n.needs = ANY(ended_steps)
              AND (how, n.after) IN (('success', 'failure'), ('unneeded', 'success'), ('unneeded', 'failure')));
        WITH skipped AS (
            UPDATE task_pending p
            SET enabled = false, sub_status = 'not needed any more', waits_for = NULL, held_due_at = NULL, due_at = least(p.due_at, at), scan_at = greatest(at, least(p.due_at, at))
            WHERE p.state <> 'RUNNING' AND p.id = ANY(ARRAY(
                SELECT s.task_id FROM task_flow_step s WHERE s.flow_id = of_flow AND s.step = ANY(hopeless) AND s.ended IS NULL))
            RETURNING p.id),
        unneeded AS (
            UPDATE task_flow_step s SET ended = 'unneeded', ended_at = at
            WHERE s.task_id = ANY(ARRAY(SELECT k.id FROM skipped k)) RETURNING s.step)
        SELECT array_agg(u.step) INTO ended_steps FROM unneeded u;
        EXIT WHEN ended_steps IS NULL;
        how := 'unneeded';
        others := '{}';
    END LOOP;
END $$;

-- Takes back the end of a step whose task was requeued: what does not run, and has not ended, waits for it again, and it for what it needs.
CREATE FUNCTION task_flow_step_reopened(of_task bigint) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    ended task_flow_step;
    followers text[];
BEGIN
    SELECT * INTO ended FROM task_flow_step s WHERE s.task_id = of_task AND s.ended IS NOT NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE task_flow_step s SET ended = NULL, result = NULL, ended_at = NULL WHERE s.task_id = of_task;
    followers := ARRAY(
        SELECT n.step FROM task_flow_need n
        WHERE n.flow_id = ended.flow_id AND n.needs = ended.step AND NOT (ended.ended = 'failure' AND n.after = 'success'));
    UPDATE task_pending p SET waits_for = p.waits_for + sign(p.waits_for)::integer
    WHERE p.id = ANY(ARRAY(SELECT s.task_id FROM task_flow_step s WHERE s.flow_id = ended.flow_id AND s.step = ANY(followers)))
      AND p.waits_for IS NOT NULL;
    PERFORM task_flow_put_off(ended.flow_id, followers || ended.step);
    -- Those that wait for it again have their time-outs before them again.
    UPDATE task_event_wait w SET until = NULL, not_before = NULL
    WHERE w.task_id = ANY(ARRAY(SELECT s.task_id FROM task_flow_step s WHERE s.flow_id = ended.flow_id AND s.step = ANY(followers)))
      AND w.until IS NOT NULL AND (SELECT p.waits_for FROM task_pending p WHERE p.id = w.task_id) IS NOT NULL;
END $$;
