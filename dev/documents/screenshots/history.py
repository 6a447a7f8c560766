"""What happened before the pictures: a week of counters, and older instants for what failed."""

from __future__ import annotations

from sqlalchemy import Connection, text

PARTS = 240
"""Partitions of the batch job's table."""
ROWS_OF_PART = 200
_NAMES = """
    VALUES ('orders.charge_card', 'payments', 410, 11, 0.004),
        ('orders.invoice', 'default', 230, 6, 0.002),
        ('stock.sync', 'default', 24, 10, 0.001), ('search.index', 'search', 1320, 4, 0),
        ('mail.receipt', 'mail', 380, 7, 0.0005), ('shipping.label', 'shipping', 190, 9, 0.006),
        ('reports.monthly', 'reports', 0.3, 16, 0)
"""
"""Name, queue, a usual minute, the usual bucket of its time, the share that is retried."""
_COUNTS = f"""
    INSERT INTO task_count (span, at, name, queue, outcome, number, wait_ms, run_ms, waits, runs)
    SELECT :span, t.at, n.name, n.queue, o.outcome, c.number,
        c.number * 40, c.number * (1 << n.bucket - 1),
        CASE o.outcome WHEN 1 THEN array_fill(0::bigint, ARRAY[3])
            || ARRAY[c.number / 3, c.number / 3, c.number / 4, c.number / 40, c.number / 90]
            ELSE '{{}}' END,
        CASE o.outcome WHEN 1 THEN array_fill(0::bigint, ARRAY[n.bucket - 1])
            || ARRAY[c.number / 2, c.number / 2, c.number / 30, c.number / 80] ELSE '{{}}' END
    FROM ({_NAMES}) AS n(name, queue, minutely, bucket, again)
    CROSS JOIN generate_series(
        date_trunc('hour', now()) - CAST(:within AS interval),
        now() - interval '3 minutes', :span * interval '1 minute') AS t(at)
    CROSS JOIN (VALUES (1), (5), (6)) AS o(outcome)
    CROSS JOIN LATERAL (SELECT
        n.minutely * :span
            * (1 + 0.45 * sin(extract(epoch FROM t.at) / 13750))
            * (0.9 + 0.2 * abs(sin(extract(epoch FROM t.at) * 12.9898))) AS runs,
        t.at > now() - interval '100 minutes' AND n.name = 'orders.charge_card' AS broken) AS s
    CROSS JOIN LATERAL (SELECT CAST(s.runs * CASE o.outcome
        WHEN 1 THEN CASE WHEN s.broken THEN 0.8 ELSE 1 END
        WHEN 5 THEN CASE WHEN s.broken THEN 0.07 ELSE n.again / 8 END
        ELSE CASE WHEN s.broken THEN 0.13 ELSE n.again END END AS bigint) AS number) AS c
    WHERE c.number > 0
"""
_SPREAD = """
    WITH aged AS (
        SELECT id, finished_at - CAST(:newest AS interval)
            - CAST(:spread AS interval) * power(row_number() OVER (ORDER BY id DESC)
                / CAST(count(*) OVER () AS float), 2) AS at
        FROM task_error WHERE name = :name),
    moved AS (
        UPDATE task_error e SET finished_at = a.at, created_at = a.at - interval '2 s',
            due_at = a.at - interval '2 s', started_at = a.at - interval '1 s'
        FROM aged a WHERE e.id = a.id RETURNING e.id, e.fingerprint, e.finished_at),
    attempts AS (
        UPDATE task_attempt t SET ended_at = m.finished_at - interval '0.6 s' * (
            SELECT count(*) FROM task_attempt l
            WHERE l.task_id = t.task_id AND l.attempt > t.attempt)
        FROM moved m WHERE m.id = t.task_id)
    UPDATE task_fingerprint f SET first_at = m.first FROM (
        SELECT fingerprint, min(finished_at) AS first FROM moved GROUP BY fingerprint) AS m
    WHERE f.fingerprint = m.fingerprint
"""
_AGED_WAITING = """
    UPDATE task_pending SET due_at = now() - interval '1 s' * (60 + id % 800),
        created_at = now() - interval '15 minutes'
    WHERE queue = ANY(:queues) AND state = 'PENDING'
"""
_ARTICLES = """
    CREATE TABLE article (id bigint PRIMARY KEY, price numeric NOT NULL);
    INSERT INTO article SELECT n, n % 97 FROM generate_series(1, {rows}) AS n;
    ANALYZE article
"""
_FIRED = """
    WITH numbered AS (
        SELECT schedule_id, fire_at, row_number() OVER (
            PARTITION BY schedule_id ORDER BY fire_at DESC) AS n FROM task_schedule_fire)
    UPDATE task_schedule_fire f SET
        fired_at = f.fire_at + interval '1 ms' * (40 + n.n * 37 % 700),
        outcome = CASE n.n WHEN 6 THEN 'skipped' ELSE f.outcome END,
        task_id = CASE n.n WHEN 6 THEN NULL WHEN 3 THEN CASE s.name WHEN 'stock.sync' THEN (
            SELECT max(id) FROM task_error WHERE name = s.name) ELSE f.task_id END
            ELSE f.task_id END
    FROM numbered n JOIN task_schedule s ON s.id = n.schedule_id
    WHERE f.schedule_id = n.schedule_id AND f.fire_at = n.fire_at
"""
_LEADS = """
    INSERT INTO task_lease (name, holder, token, rank, held_since, held_until, done_at)
    SELECT name, 'beat node-a:411', gen_random_uuid(), 2, now() - interval '6 days', t.at, t.at
    FROM unnest(ARRAY['scan', 'maintain']) AS name, (SELECT now() + interval '5 minutes') AS t(at)
    ON CONFLICT (name) DO UPDATE SET done_at = EXCLUDED.done_at
"""
_AGED_AUDIT = """
    UPDATE task_audit
    SET at = at - interval '7 minutes' * ((SELECT max(id) FROM task_audit) + 1 - id)
"""


def count_a_week(connection: Connection) -> None:
    for span, within in ((60, "7 days"), (1, "2 hours")):
        connection.execute(text(_COUNTS), {"span": span, "within": within})


def add_articles(connection: Connection) -> None:
    connection.execute(text(_ARTICLES.format(rows=PARTS * ROWS_OF_PART)))


def spread_errors(connection: Connection) -> None:
    """Give failed tasks the times of an outage: few first, then many."""
    for name, newest, spread in (
        ("orders.charge_card", "4 s", "100 minutes"),
        ("orders.invoice", "2 minutes", "5 hours"),
        ("stock.sync", "11 minutes", "21 hours"),
    ):
        given = {"name": name, "newest": newest, "spread": spread}
        connection.execute(text(_SPREAD), given)


def age_what_waits(connection: Connection, *queues: str) -> None:
    connection.execute(text(_AGED_WAITING), {"queues": list(queues)})


def fire_in_time(connection: Connection) -> None:
    """As if a backfill had fired when it was time; one instant failed, one was skipped."""
    connection.execute(text(_FIRED))


def lead(connection: Connection) -> None:
    """As if beat scanned: with it there would be a broker, and more processes."""
    connection.execute(text(_LEADS))


def age_audit(connection: Connection) -> None:
    connection.execute(text(_AGED_AUDIT))
