"""When a schedule fires, in PL/pgSQL: the same instants as ``domain/schedules/timing``.

A test draws expressions, zones and instants around clock changes, and compares both.
"""

from __future__ import annotations

from tasks_app.domain.schedules.cron import SHORTHANDS
from tasks_app.pool.tables import table

NUMBERS, HANDS = table("task_cron_numbers"), table("task_cron_hands")
SHOWN, CHANGE = table("task_cron_shown"), table("task_clock_change")
CRON, NEXT = table("task_cron_next"), table("task_next_instant")
_MONTHS = "'{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}'"
_DAYS = "'{SUN,MON,TUE,WED,THU,FRI,SAT}'"
_LONG = " ".join(f"WHEN '{short}' THEN '{long}'" for short, long in SHORTHANDS.items())

TIMING = {
    f"{NUMBERS}(field text, low integer, high integer, names text[], named_from integer)": """
RETURNS integer[] LANGUAGE plpgsql IMMUTABLE AS $$
-- The numbers that a field of a cron expression names. It was checked when it was written.
DECLARE
    term text; span text; step integer; first integer; last integer; parts text[]; at integer;
    found integer[] := '{}';
BEGIN
    FOREACH term IN ARRAY string_to_array(field, ',') LOOP
        span := split_part(term, '/', 1);
        step := coalesce(nullif(split_part(term, '/', 2), ''), '1')::integer;
        IF span = '*' THEN
            first := low; last := high;
        ELSE
            parts := string_to_array(span, '-');
            FOR i IN 1 .. cardinality(parts) LOOP
                at := array_position(names, parts[i]);
                IF at IS NOT NULL THEN
                    parts[i] := (at - 1 + named_from)::text;
                END IF;
            END LOOP;
            first := parts[1]::integer;
            last := parts[cardinality(parts)]::integer;
            IF first = last AND strpos(term, '/') > 0 THEN
                last := high;
            END IF;
        END IF;
        found := found || ARRAY(SELECT generate_series(first, last, step));
    END LOOP;
    RETURN ARRAY(SELECT DISTINCT n FROM unnest(found) AS n ORDER BY n);
END $$""",
    f"{HANDS}(expression text, after timestamp)": f"""
RETURNS timestamp LANGUAGE plpgsql IMMUTABLE AS $$
-- The first local time after this one that matches; NULL: none within fifty years.
DECLARE
    fields text[] := string_to_array(upper(
        CASE lower(expression) {_LONG} ELSE expression END), ' ');
    minutes integer[] := {NUMBERS}(fields[1], 0, 59, '{{}}', 0);
    hours integer[] := {NUMBERS}(fields[2], 0, 23, '{{}}', 0);
    days integer[] := {NUMBERS}(fields[3], 1, 31, '{{}}', 0);
    months integer[] := {NUMBERS}(fields[4], 1, 12, {_MONTHS}, 1);
    weekdays integer[] := {NUMBERS}(fields[5], 0, 7, {_DAYS}, 0);
    day_and boolean := fields[3] LIKE '*%' OR fields[5] LIKE '*%';
    start timestamp := date_trunc('minute', after) + interval '1 minute';
    day date := start::date;
    latest date := day + 366 * 50;
    since integer := EXTRACT(HOUR FROM start) * 60 + EXTRACT(MINUTE FROM start);
    of_month boolean; of_week boolean; found integer;
BEGIN
    WHILE day <= latest LOOP
        IF EXTRACT(MONTH FROM day)::integer <> ALL (months) THEN
            day := (date_trunc('month', day::timestamp) + interval '1 month')::date;
            since := 0;
            CONTINUE;
        END IF;
        of_month := EXTRACT(DAY FROM day)::integer = ANY (days);
        of_week := EXTRACT(DOW FROM day)::integer = ANY (weekdays)
            OR EXTRACT(DOW FROM day) = 0 AND 7 = ANY (weekdays);
        IF (day_and AND of_month AND of_week) OR (NOT day_and AND (of_month OR of_week)) THEN
            SELECT min(h * 60 + m) INTO found FROM unnest(hours) AS h, unnest(minutes) AS m
            WHERE h * 60 + m >= since;
            IF found IS NOT NULL THEN
                RETURN day + make_interval(mins => found);
            END IF;
        END IF;
        day := day + 1;
        since := 0;
    END LOOP;
    RETURN NULL;
END $$""",
    f"{CHANGE}(zone text, since timestamptz, until timestamptz)": """
RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
-- The first clock change after since and up to until.
DECLARE
    low timestamptz := date_trunc('second', since);
    span interval := (since AT TIME ZONE zone) - (since AT TIME ZONE 'UTC');
    high timestamptz; middle timestamptz;
BEGIN
    WHILE low < until LOOP
        high := least(low + interval '24 hours', until);
        IF (high AT TIME ZONE zone) - (high AT TIME ZONE 'UTC') <> span THEN
            WHILE high - low > interval '1 second' LOOP
                middle := low + make_interval(
                    secs => floor(EXTRACT(EPOCH FROM high - low) / 2)::double precision);
                IF (middle AT TIME ZONE zone) - (middle AT TIME ZONE 'UTC') = span THEN
                    low := middle;
                ELSE
                    high := middle;
                END IF;
            END LOOP;
            RETURN high;
        END IF;
        low := high;
    END LOOP;
    RETURN NULL;
END $$""",
    f"{SHOWN}(hands timestamp, zone text)": """
RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
-- When the clock first shows this local time; of a skipped one, the end of the gap.
DECLARE
    utc timestamptz; found timestamptz;
BEGIN
    LOOP
        utc := hands AT TIME ZONE 'UTC';
        SELECT min(t.at) INTO found FROM (
            SELECT utc - ((d.at AT TIME ZONE zone) - (d.at AT TIME ZONE 'UTC')) AS at
            FROM (VALUES (utc - interval '24 hours'), (utc + interval '24 hours')) AS d(at)) AS t
        WHERE t.at AT TIME ZONE zone = hands;
        IF found IS NOT NULL THEN
            RETURN found;
        END IF;
        hands := hands + interval '1 minute';
    END LOOP;
END $$""",
    f"{CRON}(expression text, zone text, after timestamptz)": f"""
RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
-- An expression whose minute or hour begins with * fires whenever the clock shows such a time; any
-- other one names times of the day, and fires once for each.
DECLARE
    fields text[] := string_to_array(
        CASE lower(expression) {_LONG} ELSE expression END, ' ');
    at timestamptz := after;
    hands timestamp := after AT TIME ZONE zone;
    span interval := hands - (after AT TIME ZONE 'UTC');
    found timestamptz; change timestamptz;
BEGIN
    LOOP
        hands := {HANDS}(expression, hands);
        IF hands IS NULL THEN
            RETURN NULL;
        ELSIF fields[1] LIKE '*%' OR fields[2] LIKE '*%' THEN
            found := (hands - span) AT TIME ZONE 'UTC';
            change := {CHANGE}(zone, at, found);
            IF change IS NULL THEN
                RETURN found;
            END IF;
            at := change;
            hands := at AT TIME ZONE zone;
            span := hands - (at AT TIME ZONE 'UTC');
            hands := hands - interval '1 microsecond';
        ELSE
            found := {SHOWN}(hands, zone);
            IF found > after THEN
                RETURN found;
            END IF;
        END IF;
    END LOOP;
END $$""",
    f"{NEXT}(kind text, expression text, zone text, anchor timestamptz, after timestamptz)": f"""
RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
-- The first instant of a schedule after this one; NULL: there is none.
DECLARE
    every numeric;
BEGIN
    IF kind = 'cron' THEN
        RETURN {CRON}(expression, zone, after);
    ELSIF kind = 'once' THEN
        RETURN CASE WHEN expression::timestamptz > after THEN expression::timestamptz END;
    END IF;
    every := EXTRACT(EPOCH FROM expression::interval);
    RETURN anchor + make_interval(secs => (every * greatest(0, 1 + floor(
        (EXTRACT(EPOCH FROM after) - EXTRACT(EPOCH FROM anchor)) / every)))::double precision);
END $$""",
}
"""Signatures, each with its definition."""
