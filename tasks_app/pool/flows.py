"""Flows: created with their steps, and read. What follows an end of a step is in ``flows.sql``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, text

from tasks_app.domain.errors import TasksError
from tasks_app.domain.events import AwaitedEvent, EventNeed
from tasks_app.domain.flows import (
    UNDO_STEP,
    After,
    FlowProgress,
    FlowState,
    FlowStep,
    MapItems,
    Need,
    StepEnd,
    StepOfFlow,
    WhenFailed,
    is_open,
    needs_of,
    state_of_flow,
)
from tasks_app.domain.tasks.states import State
from tasks_app.pool import events
from tasks_app.pool.fragments.conditions import is_held
from tasks_app.pool.tables import (
    COMPLETED,
    ENTER_STEPS,
    ERROR,
    EVENT,
    EVENT_WAIT,
    EXTEND,
    FLOW_NEED,
    FLOW_STEP,
    GROUP,
    GROUP_IDS,
    NOW,
    PENDING,
    UNDO,
)
from tasks_app.pool.task_groups import PAGE

_ITEM = "'%]'"  # names of items of maps
_INSERT = text(f"""
    INSERT INTO {GROUP} (total, flow, flow_key, when_failed, created_at, counted_at)
    VALUES (:total, :flow, CAST(:key AS text), :when_failed, {NOW}, {NOW})
    ON CONFLICT (flow, flow_key) WHERE outcome IS NULL AND flow_key IS NOT NULL DO NOTHING
    RETURNING id""")
_OPEN = text(f"""
    SELECT id FROM {GROUP} WHERE flow = :flow AND flow_key = :key AND outcome IS NULL""")
_ENTER_IDS = text(f"""
    INSERT INTO {GROUP_IDS} (group_id, no, ids) VALUES (:id, :no, CAST(:ids AS bigint[]))""")
_ENTER = text(f"""
    SELECT {ENTER_STEPS}(:id, CAST(:steps AS text[]), CAST(:tasks AS bigint[]),
        CAST(:names AS text[]), CAST(:delays AS interval[]), CAST(:undoes AS text[]),
        CAST(:waiting AS text[]), CAST(:needs AS text[]), CAST(:after AS text[]))""")
# Who only creates tasks may not lock a row of a group itself.
_LOCK = text(f"SELECT {EXTEND}(:id, CAST(:no_one AS bigint[]))")
_LOCK_TO_REOPEN = text(f"SELECT true FROM {GROUP} g WHERE g.id = :id FOR NO KEY UPDATE")
_TO_EXTEND = text(f"""
    SELECT n.number, s.step, s.ended
    FROM {GROUP} g
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM {FLOW_STEP} u
        WHERE u.flow_id = g.id AND u.step NOT LIKE {_ITEM}) AS n
    LEFT JOIN LATERAL (
        SELECT s.step, s.ended FROM {FLOW_STEP} s
        WHERE s.flow_id = g.id AND s.step = ANY(CAST(:steps AS text[])) OFFSET 0) AS s ON true
    WHERE g.id = :id AND g.flow IS NOT NULL""")
_ADD_IDS = text(f"SELECT {EXTEND}(:id, CAST(:ids AS bigint[]))")
_ADD_IDS_TO_REOPEN = text(f"""
    WITH grown AS (
        UPDATE {GROUP} g SET total = g.total + cardinality(CAST(:ids AS bigint[]))
        WHERE g.id = :id RETURNING g.id)
    INSERT INTO {GROUP_IDS} (group_id, no, ids)
    SELECT g.id, (SELECT coalesce(max(i.no) + 1, 0) FROM {GROUP_IDS} i WHERE i.group_id = g.id),
        CAST(:ids AS bigint[])
    FROM grown g""")

_ADD_NEEDS = text(f"""
    INSERT INTO {FLOW_NEED} (flow_id, step, needs, after)
    SELECT s.flow_id, s.step, n.needs, n.after
    FROM (SELECT * FROM {FLOW_STEP} WHERE task_id = :id) AS s
    CROSS JOIN unnest(CAST(:needs AS text[]), CAST(:after AS text[])) AS n(needs, after)
    ON CONFLICT DO NOTHING""")


def insert_flow(
    connection: Connection, name: str, key: str | None, when_failed: WhenFailed, total: int
) -> tuple[int, bool]:
    """Insert an open flow without its steps; return its id and True, or an open one and False."""
    values = {"flow": name, "key": key, "when_failed": when_failed.value, "total": total}
    while True:
        made = connection.execute(_INSERT, {**values, "now": None}).scalar()
        if made is not None:
            return made, True
        there = connection.execute(_OPEN, values).scalar()
        if there is not None:  # else it has just ended
            return there, False


def lock_flow(
    connection: Connection, flow_id: int, steps: Collection[str], *, reopens: bool = False
) -> FlowToExtend:
    """Lock a flow that is to get more steps; ``steps``: those whose ends are asked for.

    Raises:
        TasksError: it is unknown, or over and not to be reopened.
    """
    values = {"id": flow_id, "steps": list(steps), "no_one": []}
    locked = connection.execute(_LOCK_TO_REOPEN if reopens else _LOCK, values).scalar()
    rows = connection.execute(_TO_EXTEND, values).all() if locked else []
    if not rows:
        raise TasksError(
            f"Flow {flow_id} is over or unknown, so it takes no steps. "
            "Add steps while a step of the flow still waits or runs."
        )
    ends = {
        row.step: None if row.ended is None else StepEnd(row.ended)
        for row in rows
        if row.step is not None
    }
    return FlowToExtend(rows[0].number, ends)


def add_needs(connection: Connection, task_id: int, needs: Collection[Need]) -> None:
    """Enter needs of a running step, on steps of its flow; commit with its fence asked.

    They are counted when its run ends with :class:`WaitForNeeds`.
    """
    values = {"id": task_id, "needs": [n.step for n in needs], "after": [n.after for n in needs]}
    connection.execute(_ADD_NEEDS, values)


class FlowToExtend(NamedTuple):
    steps: int  # how many it has, items of maps aside
    ends: Mapping[str, StepEnd | None]


class NewStep(NamedTuple):
    task: str  # its name
    delay: timedelta | None  # from when its needs are met; None: none of them is open
    needs: Mapping[str, After]
    events: Mapping[str, timedelta | None]  # time-outs, by key
    undo: str | None = None  # JSON: the row of what undoes it, and whether it wraps its payload


def enter_steps(
    connection: Connection, flow_id: int, steps: Mapping[str, NewStep], ids: Sequence[int]
) -> None:
    """Enter the steps, whose tasks were created in this transaction, in their order."""
    pages = [{"id": flow_id, "no": no, "ids": page} for no, page in enumerate(_pages(ids))]
    if pages:
        connection.execute(_ENTER_IDS, pages)
        _enter(connection, flow_id, steps, ids)


def add_steps(
    connection: Connection,
    flow_id: int,
    steps: Mapping[str, NewStep],
    ids: Sequence[int],
    *,
    reopens: bool = False,
) -> None:
    """Enter more steps of a flow that :func:`lock_flow` has locked."""
    pages = [{"id": flow_id, "ids": page} for page in _pages(ids)]
    if pages:
        for page in pages:  # an array of pages would need another statement
            connection.execute(_ADD_IDS_TO_REOPEN if reopens else _ADD_IDS, page)
        _enter(connection, flow_id, steps, ids)


def _pages(ids: Sequence[int]) -> list[list[int]]:
    return [list(map(int, ids[i : i + PAGE])) for i in range(0, len(ids), PAGE)]


def _enter(
    connection: Connection, flow_id: int, steps: Mapping[str, NewStep], ids: Sequence[int]
) -> None:
    needs = [(name, *need) for name, step in steps.items() for need in step.needs.items()]
    values = {
        "id": flow_id,
        "steps": list(steps),
        "tasks": list(map(int, ids)),
        "names": [step.task for step in steps.values()],
        # A role may have array_nulls off, which makes words of nulls.
        "delays": [step.delay or timedelta(0) for step in steps.values()],
        "undoes": [step.undo or "" for step in steps.values()],
        "waiting": [step for step, _, _ in needs],
        "needs": [need for _, need, _ in needs],
        "after": [after.value for _, _, after in needs],
    }
    waits = [
        (int(task_id), EventNeed(*need))
        for task_id, step in zip(ids, steps.values(), strict=True)
        for need in step.events.items()
    ]
    if waits:
        events.enter_waits(connection, waits)
    connection.execute(_ENTER, values)


# A step that is not needed any more goes on, too, until a scan has skipped it. Steps and tasks are
# found one by one: the plan of a join, or of an EXISTS, would depend on guessed sizes.
_HAS_TASK = f"""(
        SELECT true FROM {FLOW_STEP} s CROSS JOIN LATERAL (
            SELECT p.waits_for FROM {PENDING} p WHERE p.id = s.task_id OFFSET 0) AS p
        WHERE s.flow_id = g.id AND %s LIMIT 1)"""
_ONLY_EVENTS = f"""abs(p.waits_for) = (
            SELECT count(*) FROM {EVENT_WAIT} w
            WHERE w.task_id = s.task_id AND w.timeout IS NULL
              AND (SELECT e.sent_at FROM {EVENT} e WHERE e.key = w.key) IS NULL)"""
_GOES_ON = f"""coalesce({_HAS_TASK % "p.waits_for IS NULL"},
        {_HAS_TASK % _ONLY_EVENTS}, false)"""
_COLUMNS = f"""
    g.id, g.flow, g.flow_key, g.when_failed, g.outcome, g.total, g.succeeded, g.failed,
    g.created_at, g.counted_at, g.outcome IS NULL AND {_GOES_ON} AS goes_on"""
_GET = text(f"SELECT {_COLUMNS} FROM {GROUP} g WHERE g.id = :id AND g.flow IS NOT NULL")
_IN_STATE = {
    FlowState.RUNNING: f"g.outcome IS NULL AND {_GOES_ON}",
    FlowState.STALLED: f"g.outcome IS NULL AND NOT {_GOES_ON}",
    FlowState.SUCCEEDED: f"g.outcome = '{State.SUCCEEDED}'",
    FlowState.FAILED: f"g.outcome = '{State.FAILED}'",
}
_NEWEST = text(f"""
    SELECT {_COLUMNS} FROM {GROUP} g
    WHERE g.flow IS NOT NULL AND (CAST(:flow AS text) IS NULL OR g.flow = :flow)
      AND (CAST(:key AS text) IS NULL OR g.flow_key = :key)
      AND (CAST(:below AS bigint) IS NULL OR g.id < :below)
      AND CASE CAST(:state AS text)
        {" ".join(f"WHEN '{state}' THEN {holds}" for state, holds in _IN_STATE.items())}
        ELSE true END
    ORDER BY g.id DESC LIMIT :most""")
MOST_LISTED = 50  # items of maps
_PLACE = "CASE WHEN i.ended IS NULL THEN 2 WHEN i.ended = 'failure' THEN 1 ELSE 3 END"
_OF_STEP = "(CAST(:step AS text) IS NULL OR n.step = :step)"
# All steps; or one, those that it needs and ``undo``, without their results.
_STEPS = text(f"""
    SELECT s.step, s.task_id, s.task_name, s.ended, s.ended_at, p.waits_for, p.due_at, p.attempt,
        s.undo -> 'row' -> 'terms' ->> 'name' AS undo,
        CASE WHEN CAST(:step AS text) IS NULL THEN s.result END AS result,
        coalesce(p.state, e.state) AS state, e.error, p.id IS NOT NULL AND {is_held()} AS held
    FROM (
        SELECT s.*, 0 AS place FROM {FLOW_STEP} s
        WHERE s.flow_id = :id AND CASE WHEN CAST(:step AS text) IS NULL THEN s.step NOT LIKE {_ITEM}
            ELSE s.step IN (:step, '{UNDO_STEP}') OR s.step = ANY(ARRAY(
                SELECT n.needs FROM {FLOW_NEED} n
                WHERE n.flow_id = :id AND n.step = :step AND n.needs NOT LIKE {_ITEM})) END
        UNION ALL (
            SELECT i.*, {_PLACE} FROM {FLOW_STEP} i
            WHERE i.flow_id = :id AND i.step LIKE {_ITEM} AND CAST(:step AS text) IS NULL
            ORDER BY {_PLACE}, i.task_id + 0 LIMIT {MOST_LISTED})) AS s
    LEFT JOIN LATERAL (SELECT * FROM {PENDING} p WHERE p.id = s.task_id OFFSET 0) AS p ON true
    LEFT JOIN LATERAL (SELECT * FROM {ERROR} e WHERE e.id = s.task_id OFFSET 0) AS e ON true
    ORDER BY s.place, s.task_id + 0""")  # so that no index of all flows is read
_NEEDS = text(f"""
    SELECT n.step, n.needs, n.after FROM {FLOW_NEED} n
    WHERE n.flow_id = :id AND {_OF_STEP} AND n.needs NOT LIKE {_ITEM}
    ORDER BY n.step, n.needs""")
_ITEMS = text(f"""
    SELECT n.step, count(*) AS total,
        count(*) FILTER (WHERE e.ended IN ('success', 'unneeded')) AS succeeded,
        count(*) FILTER (WHERE e.ended = 'failure') AS failed
    FROM {FLOW_NEED} n
    CROSS JOIN LATERAL (
        SELECT e.ended FROM {FLOW_STEP} e
        WHERE e.flow_id = n.flow_id AND e.step = n.needs OFFSET 0) AS e
    WHERE n.flow_id = :id AND {_OF_STEP} AND n.needs LIKE {_ITEM} GROUP BY n.step""")
_STEP_OF = text(f"SELECT s.flow_id, s.step FROM {FLOW_STEP} s WHERE s.task_id = :id")
_TASK_IDS = text(f"""
    SELECT s.step, s.task_id FROM {FLOW_STEP} s
    WHERE s.flow_id = :id AND s.step NOT LIKE {_ITEM} ORDER BY s.task_id + 0""")
MOST_COUNTED = 10_000
_COUNT = text(f"""
    SELECT count(*) FILTER (WHERE f.goes_on) AS running,
        count(*) FILTER (WHERE NOT f.goes_on) AS stalled
    FROM (SELECT {_GOES_ON} AS goes_on FROM {GROUP} g
          WHERE g.flow IS NOT NULL AND g.outcome IS NULL LIMIT :most) AS f""")


def task_ids(connection: Connection, flow_id: int) -> dict[str, int]:
    """Return the ids of a flow's tasks, by step, without the items of maps."""
    return {row.step: row.task_id for row in connection.execute(_TASK_IDS, {"id": flow_id})}


def get_flow(
    connection: Connection, flow_id: int, *, step: str | None = None
) -> FlowProgress | None:
    """Return a flow with its steps; or with one ``step``, those that it needs, and ``undo``.

    Of the items of maps it has the first fifty, those that failed before others; or, with a step,
    none.
    """
    row = connection.execute(_GET, {"id": flow_id}).first()
    if row is None:
        return None
    values = {"id": flow_id, "step": step}
    needs = needs_of(connection.execute(_NEEDS, values))
    items = {
        row.step: MapItems(row.total, row.succeeded, row.failed)
        for row in connection.execute(_ITEMS, values)
    }
    rows = connection.execute(_STEPS, values).all()
    waits = events.waits_of(connection, [row.task_id for row in rows])
    return _progress(row, _steps(rows, needs, items, waits))


_BEGIN_UNDO = text(f"SELECT * FROM {UNDO}(:id, {NOW})")
_UNDOES = text(f"""
    SELECT s.step, s.undo FROM {FLOW_STEP} s WHERE s.flow_id = :id AND s.undo IS NOT NULL""")


# A task ends after its flow was created: days before that are not opened.
_SKIPPED = text(f"""
    SELECT c.id FROM {COMPLETED} c
    WHERE c.id = ANY(CAST(:ids AS bigint[])) AND c.finished_at >= :since
      AND c.state = '{State.SKIPPED}'""")


def begin_undo(connection: Connection, flow_id: int) -> int:
    """Add the step that undoes a locked flow, once; return the id of its task."""
    connection.execute(_BEGIN_UNDO, {"id": flow_id, "now": None}).all()
    return task_ids(connection, flow_id)[UNDO_STEP]


def skipped(connection: Connection, flow: FlowProgress, ids: Collection[int]) -> set[int]:
    """Return those of the tasks that were skipped, which counts as a success of their steps."""
    rows = connection.execute(_SKIPPED, {"ids": list(ids), "since": flow.created_at})
    return set(rows.scalars())


def undoes(connection: Connection, flow_id: int) -> dict[str, dict[str, Any]]:
    """Return what undoes steps of a flow, by the names of the steps, as in :class:`NewStep`."""
    return {row.step: row.undo for row in connection.execute(_UNDOES, {"id": flow_id})}


def step_name(connection: Connection, task_id: int) -> str | None:
    """Return the name of a task's step; None: it is in no flow."""
    found = connection.execute(_STEP_OF, {"id": task_id}).first()
    return None if found is None else found.step


def step_of(connection: Connection, task_id: int) -> StepOfFlow | None:
    """Return the step of a task; None: it is in no flow."""
    found = connection.execute(_STEP_OF, {"id": task_id}).first()
    flow = None if found is None else get_flow(connection, found.flow_id, step=found.step)
    if flow is None:
        return None
    return StepOfFlow(next(step for step in flow.steps if step.task_id == task_id), flow)


def newest_flows(
    connection: Connection,
    most: int,
    *,
    name: str | None = None,
    key: str | None = None,
    state: FlowState | None = None,
    below: int | None = None,
) -> list[FlowProgress]:
    """Return flows without their steps, newest first; ``below``: only those with a lower id."""
    values = {"flow": name, "key": key, "state": state, "below": below, "most": most}
    return [_progress(row) for row in connection.execute(_NEWEST, values)]


def count_open(connection: Connection) -> dict[str, int]:
    """Return how many flows run and how many have stalled, of at most ``MOST_COUNTED``."""
    row = connection.execute(_COUNT, {"most": MOST_COUNTED}).one()
    return {"running": row.running, "stalled": row.stalled}


def _progress(row: Any, steps: Iterable[FlowStep] = ()) -> FlowProgress:
    return FlowProgress(
        id=row.id,
        name=row.flow,
        key=row.flow_key,
        state=state_of_flow(row.outcome, goes_on=row.goes_on),
        on_failure=WhenFailed(row.when_failed),
        total=row.total,
        succeeded=row.succeeded,
        failed=row.failed,
        created_at=row.created_at,
        changed_at=row.counted_at,
        steps=tuple(steps),
    )


def _steps(
    rows: Sequence[Row[Any]],
    needs: Mapping[str, list[Need]],
    items: Mapping[str, MapItems],
    waits: Mapping[int, tuple[AwaitedEvent, ...]],
) -> list[FlowStep]:
    ends = {row.step: None if row.ended is None else StepEnd(row.ended) for row in rows}
    return [
        FlowStep(
            name=row.step,
            task_id=row.task_id,
            task=row.task_name,
            end=ends[row.step],
            state=None if row.state is None else State(row.state),
            attempt=row.attempt,
            held=row.held,
            due_at=row.due_at if row.waits_for is None and not row.held else None,
            open_needs=tuple(n for n in needs.get(row.step, ()) if is_open(n, ends.get(n.step)))
            if ends[row.step] is None
            else (),
            needs=tuple(needs.get(row.step, ())),
            result=row.result,
            error=row.error,
            ended_at=row.ended_at,
            items=items.get(row.step),
            events=waits.get(row.task_id, ()),
            undo=row.undo,
        )
        for row in rows
    ]


class NeededStep(NamedTuple):
    """A step that a running one needs, as it ended."""

    step: str
    task_id: int
    task: str
    end: StepEnd | None
    result: Any


def _needed_by(which: str) -> str:
    return f"""
    SELECT e.step, e.task_id, e.task_name, e.ended, e.result
    FROM {FLOW_STEP} s
    CROSS JOIN LATERAL (
        SELECT * FROM {FLOW_NEED} n
        WHERE n.flow_id = s.flow_id AND n.step = s.step AND n.needs {which} {_ITEM} OFFSET 0) AS n
    CROSS JOIN LATERAL (
        SELECT * FROM {FLOW_STEP} e WHERE e.flow_id = s.flow_id AND e.step = n.needs OFFSET 0) AS e
    WHERE s.task_id = :id ORDER BY e.task_id + 0"""


_NEEDED, _ITEMS_OF = text(_needed_by("NOT LIKE")), text(_needed_by("LIKE"))


def needed_steps(connection: Connection, task_id: int) -> dict[str, NeededStep]:
    """Return the steps that the step of this task needs; empty: it is in no flow, or a first."""
    found = _needed(connection.execute(_NEEDED, {"id": task_id}))
    return {step.step: step for step in found}


def items_of(connection: Connection, task_id: int) -> list[NeededStep]:
    """Return the items of a map in their order; empty: it has not created them."""
    return list(_needed(connection.execute(_ITEMS_OF, {"id": task_id})))


def _needed(rows: Iterable[Any]) -> Iterator[NeededStep]:
    for r in rows:
        end = None if r.ended is None else StepEnd(r.ended)
        yield NeededStep(r.step, r.task_id, r.task_name, end, r.result)
