"""Flows of twenty steps that run during the faults: each effect once, no step before its needs."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from dev.torture.verdict import Check
from tasks_app import (
    Fail,
    Flow,
    TaskContext,
    create_flow,
    event,
    failed,
    handler,
    requeue_task,
    send_event,
    undo_flow,
)

AT_ONCE = 5  # flows of one transaction
ITEMS = 4
ROLLED_BACK, SENT_AGAIN = 0.1, 0.1  # shares of events
FAILS = UNDOES = 10  # one flow of so many has a step that fails until it is mended; one is undone
OFTEN: dict[str, Any] = {"retry": "fixed 100ms", "max_attempts": 50, "biz_key": "flow"}
_TABLES = text("""
    CREATE TABLE flow_made (id bigint PRIMARY KEY, number integer);
    CREATE TABLE flow_mended (number integer PRIMARY KEY);
    CREATE TABLE flow_undone (number integer);
    CREATE TABLE flow_effect (id bigserial PRIMARY KEY, task_id bigint);
""")
_MADE = text("INSERT INTO flow_made VALUES (:id, :number)")
_NUMBERS = text("SELECT number FROM flow_made")
_EFFECT = text("INSERT INTO flow_effect (task_id) VALUES (:id)")
_UNDONE = text("INSERT INTO flow_undone (number) VALUES (:number)")
_IS_MENDED = text("SELECT count(*) FROM flow_mended WHERE number = :number")
_MEND = text("INSERT INTO flow_mended VALUES (:number) ON CONFLICT DO NOTHING")
_TO_MEND = text("""
    SELECT s.task_id, m.number FROM task_flow_step s JOIN flow_made m ON m.id = s.flow_id
    WHERE s.ended = 'failure'
""")
_TO_UNDO = text(f"""
    SELECT m.id FROM flow_made m JOIN task_group g ON g.id = m.id
    WHERE m.number % {UNDOES} = 5 AND g.outcome = 'SUCCEEDED'
        AND NOT EXISTS (SELECT FROM task_flow_step s WHERE s.flow_id = m.id AND s.step = 'undo')
""")
_GOES_ON = text("SELECT count(*) FROM task_group WHERE flow IS NOT NULL AND outcome IS NULL")
_SILENT = "'flow.numbers', 'flow.undo', 'tasks_app.map', 'tasks_app.undo'"
_FACTS = text(f"""
    SELECT
        (SELECT count(*) FROM flow_made) AS made,
        (SELECT count(*) FROM task_group WHERE flow IS NOT NULL) AS flows,
        (SELECT count(*) FROM task_group WHERE flow IS NOT NULL AND outcome = 'SUCCEEDED') AS done,
        (SELECT count(*) FROM task_flow_step WHERE ended = 'success'
            AND task_name NOT IN ({_SILENT})) AS steps,
        (SELECT count(*) FROM flow_undone) AS undone,
        (SELECT count(DISTINCT number) FROM flow_undone) AS flows_undone,
        (SELECT count(*) FROM task_event WHERE sent_at IS NOT NULL) AS sent,
        (SELECT count(*) FROM flow_effect) AS effects,
        (SELECT count(DISTINCT task_id) FROM flow_effect) AS tasks,
        (SELECT count(*) FROM task_flow_need n
            JOIN task_flow_step s USING (flow_id, step) JOIN flow_effect e ON e.task_id = s.task_id
            JOIN task_flow_step k ON (k.flow_id, k.step) = (n.flow_id, n.needs)
            WHERE n.after = 'success' AND k.ended = 'success'
                AND k.task_name NOT IN ({_SILENT}) AND NOT EXISTS (
                SELECT FROM flow_effect b WHERE b.task_id = k.task_id AND b.id < e.id)) AS early
""")


@handler("flow.work")
def work(ctx: TaskContext, payload: dict[str, Any]) -> str:
    """Write an effect, with time to be killed before and after it."""
    time.sleep(random.uniform(0, 0.01))
    number = {"number": payload["number"]}
    if payload.get("fails") and not ctx.session.execute(_IS_MENDED, number).scalar():
        raise Fail("nobody has mended it yet")
    ctx.session.execute(_EFFECT, {"id": ctx.task_id})
    time.sleep(random.uniform(0, 0.01))
    return f"{payload['number']}"


def _write(ctx: TaskContext) -> None:
    ctx.session.execute(_EFFECT, {"id": ctx.task_id})


@handler("flow.kept")
def kept(ctx: TaskContext, payload: dict[str, Any]) -> str:
    """Write an effect in a kept step, sleep, and wait for an event."""
    ctx.step("effect", _write, ctx)
    ctx.sleep("1s", name="nap")
    if ctx.wait_event(f"first:{payload['number']}") != {"number": payload["number"]}:
        raise ValueError("the event has another payload")
    return f"{payload['number']}"


@handler("flow.approved")
def approved(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Write an effect if one event came, and the other did not."""
    number = payload["number"]
    if ctx.event(f"torture:{number}") != {"number": number} or ctx.event(f"never:{number}"):
        raise ValueError("its events are others")
    ctx.session.execute(_EFFECT, {"id": ctx.task_id})


@handler("flow.undo")
def undo(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Write an effect of undoing."""
    ctx.session.execute(_UNDONE, {"number": payload["payload"]["number"]})


@handler("flow.numbers")
def numbers(_ctx: TaskContext, payload: dict[str, Any]) -> list[dict[str, int]]:
    """Return the items of a map."""
    return [{"number": payload["number"]}] * ITEMS


@handler("flow.end")
def end(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Write an effect if the map has handed all results on."""
    if ctx.need("each") != [f"{payload['number']}"] * ITEMS:
        raise ValueError("the map has other results")
    ctx.session.execute(_EFFECT, {"id": ctx.task_id})


def twenty_steps(number: int) -> Flow:
    """Diamonds in a row, a branch for a failure, and a map at the end."""
    flow = Flow("torture")
    before = flow.step("first", "flow.kept", {"number": number}, undo="flow.undo", **OFTEN)
    for n in range(3):
        fails = n == 2 and number % FAILS == 0
        left = flow.step(f"left{n}", "flow.work", {"number": number}, needs=before, **OFTEN)
        right = flow.step(
            f"right{n}", "flow.work", {"number": number, "fails": fails}, needs=before, **OFTEN
        )
        before = flow.step(
            f"join{n}", "flow.work", {"number": number}, needs=[left, right], **OFTEN
        )
    flow.step("sorry", "flow.work", {"number": number}, needs=failed("right2"), **OFTEN)
    awaited = event(f"torture:{number}"), event(f"never:{number}", timeout="1s")
    approved = flow.step(
        "approved", "flow.approved", {"number": number}, needs=[before, *awaited], **OFTEN
    )
    numbers = flow.step("numbers", "flow.numbers", {"number": number}, needs=approved, **OFTEN)
    each = flow.map("each", "flow.work", over=numbers, **OFTEN)
    flow.step("end", "flow.end", {"number": number}, needs=each, undo="flow.undo", **OFTEN)
    return flow


class Producer(threading.Thread):
    """Creates flows in transactions, and asks after each that was not answered."""

    def __init__(self, engine: Engine, flows: int, lasts_s: float) -> None:
        super().__init__(daemon=True)
        self._engine, self._flows = engine, flows
        self._pause_s = lasts_s * AT_ONCE / max(flows, 1)

    def run(self) -> None:
        left = set(range(self._flows))
        while left:
            numbers = sorted(left)[:AT_ONCE]
            try:
                with self._engine.begin() as connection:
                    for number in numbers:
                        made = create_flow(connection, twenty_steps(number))
                        connection.execute(_MADE, {"id": made.id, "number": number})
                left -= set(numbers)
                time.sleep(self._pause_s)
            except DBAPIError:  # nobody knows whether the COMMIT was carried out: so ask
                time.sleep(0.2)
                left -= self._made()

    def _made(self) -> set[int]:
        try:
            with self._engine.connect() as connection:
                return set(connection.execute(_NUMBERS).scalars())
        except DBAPIError:
            self._engine.dispose()
            return set()


class Sender(threading.Thread):
    """Sends the events that flows wait for, before or after they do, some once more."""

    def __init__(self, engine: Engine, flows: int, lasts_s: float) -> None:
        super().__init__(daemon=True)
        self._engine, self._rng = engine, random.Random(flows)
        self._pause_s = lasts_s / max(2 * flows, 1)
        self._left = [(kind, number) for kind in ("first", "torture") for number in range(flows)]
        self._rng.shuffle(self._left)

    def run(self) -> None:
        while self._left:
            kind, number = self._left[-1]
            try:
                with self._engine.connect() as connection:
                    send_event(connection, f"{kind}:{number}", {"number": number})
                    if self._rng.random() < ROLLED_BACK:
                        connection.rollback()
                        continue
                    connection.commit()
            except DBAPIError:  # nobody knows whether the COMMIT was carried out: so once more
                self._engine.dispose()
                time.sleep(0.2)
                continue
            if self._rng.random() >= SENT_AGAIN:
                self._left.pop()
            time.sleep(self._pause_s)


def begin(connection: Connection) -> None:
    connection.execute(_TABLES)


def go_on(connection: Connection) -> int:
    """Mend what has failed, undo some that have succeeded; return how many are not over."""
    for task in connection.execute(_TO_MEND).all():
        connection.execute(_MEND, {"number": task.number})
        requeue_task(connection, task.task_id)
    for flow_id in connection.execute(_TO_UNDO).scalars().all():
        undo_flow(connection, flow_id, by="torture")
    return int(connection.execute(_GOES_ON).scalar_one())


def judge_flows(connection: Connection, flows: int) -> list[Check]:
    f, undone = connection.execute(_FACTS).one(), (flows + UNDOES - 6) // UNDOES
    return [
        Check("each flow that was committed is there", f.made == f.flows == flows, f.flows),
        Check("each flow has succeeded", f.done == flows, f.done),
        Check("each step that succeeded has its effect", f.tasks == f.steps, f.tasks),
        Check("no step has two effects", f.effects == f.tasks, f.effects),
        Check("each event was sent", f.sent == 2 * flows, f.sent),
        Check("flows were undone", f.flows_undone == undone, f.flows_undone),
        Check("each of their steps once", f.undone == 2 * undone, f.undone),
        Check("no step ran before what it needs", f.early == 0, f.early),
    ]
