"""Timeline: all that is known to have happened to a task, in order.

Its row tells when it was created, claimed last and ended; the history which attempts failed; the
audit what people did; the log of transitions, where it is kept, each claim and its end, and, where
it has all, what people did to this task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.records import Attempt, Task
from tasks_app.domain.tasks.states import Event, State, next_state
from tasks_app.pool.fragments.transition_log import CREATED
from tasks_app.pool.operations.audit import AuditLine
from tasks_app.pool.tables import TRANSITION
from tasks_app.pool.tasks.run_records import LogLine, LogOfAttempt

_BACK = {
    "retry": "failed, comes back",
    "snooze": "snoozed",
    "release": "released",
    "rescue": "rescued",
}
_OF_STATE = {
    State.SUCCEEDED: "succeeded",
    State.SKIPPED: "skipped",
    State.CANCELLED: "cancelled",
    State.EXPIRED: "expired",
    State.FAILED: "failed",
}
_STEP = timedelta(seconds=10)  # within it the audit has its line after the one of the log


@dataclass(frozen=True, slots=True)
class Transition:
    at: datetime
    attempt: int
    event: str
    from_state: str | None  # None: it was created
    to_state: str
    owner: str | None
    started_at: datetime | None  # when the claim that ended was made
    due_at: datetime | None
    detail: str | None
    who: str | None  # if no child did it: an operator, or what made the task
    why: str | None


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime
    what: str  # created, claimed, succeeded, failed, …; of people: the action in the audit
    attempt: int | None = None
    by: str | None = None  # the child that had claimed it, or the operator
    state: str | None = None  # in which it was from then on, where that is known
    due_at: datetime | None = None  # when it was due again
    kind: str | None = None  # class of the exception, or a word of ours
    message: str | None = None  # of the error; of people: why they did it
    traceback: str | None = None
    traceback_of: int | None = None  # the later attempt that shows the same traceback
    lines: tuple[LogLine, ...] = ()  # what its handler logged in this attempt, the last lines
    cut: int = 0  # how many lines before them were left out


@dataclass(frozen=True, slots=True)
class Sources:
    task: Task
    attempts: Sequence[Attempt] = ()
    transitions: Sequence[Transition] = ()
    logs: Sequence[LogOfAttempt] = ()
    audit: Sequence[AuditLine] = ()
    creator: str | None = None  # the schedule or group that made it


def timeline(of: Sources) -> tuple[Moment, ...]:
    moments = [Moment(of.task.created_at, "created", by=of.creator, state=State.PENDING)]
    acts = [each for each in of.transitions if each.who and each.event != CREATED]  # of people
    ends = [*_logged(of), *_failed(of), *_last(of)]
    claims = [
        _claim(line.attempt, line.started_at, line.owner)
        for line in of.transitions
        if line.event == Event.CLAIM
    ]
    claims += [claim for claim, _ in ends]
    if of.task.state is State.RUNNING:
        claims.append(_claim(of.task.attempt, of.task.started_at, of.task.owner))
    moments += {claim.attempt: claim for claim in claims if claim is not None}.values()
    moments += [end for _, end in ends]
    for act in acts:
        state = act.to_state if act.to_state != act.from_state else None
        moments.append(
            Moment(act.at, act.event, None, act.who, state, act.due_at, act.detail, act.why)
        )
    for line in of.audit:
        if not any(_is_same(line, act) for act in acts):
            moments.append(Moment(line.at, line.action, by=line.who or line.role, message=line.why))
    moments.sort(key=lambda m: (m.at, m.what != "created", m.what != "claimed"))
    return tuple(_folded(_with_lines(moments, of.logs)))


Ending = tuple[Moment | None, Moment]  # the claim that ended, if there was one, and how it did


def _logged(of: Sources) -> Iterator[Ending]:
    failures = {(each.attempt, each.event): each for each in of.attempts}
    for line in of.transitions:
        if line.who or line.event == Event.CLAIM:
            continue
        failed = failures.get((line.attempt, line.event))
        end = Moment(
            line.at,
            _word(line.event, line.to_state),
            line.attempt or None,
            line.owner,
            line.to_state,
            line.due_at,
            line.detail if failed is None else failed.kind,
            None if failed is None else failed.message,
            None if failed is None else failed.traceback,
        )
        yield _claim(line.attempt, line.started_at, line.owner), end


def _is_same(line: AuditLine, act: Transition) -> bool:
    by = (line.who or line.role) == act.who
    return by and line.action == act.event and timedelta(0) <= line.at - act.at < _STEP


def _failed(of: Sources) -> Iterator[Ending]:
    """Of attempts that failed where the log has no line."""
    known = {(line.attempt, line.event) for line in of.transitions}
    for each in of.attempts:
        if (each.attempt, each.event) not in known:
            over = each.ended_at == of.task.finished_at
            state = of.task.state if over else next_state(State.RUNNING, Event(each.event))
            yield (
                _claim(each.attempt, each.started_at, each.owner),
                Moment(
                    each.ended_at,
                    _word(each.event, state),
                    each.attempt,
                    each.owner,
                    state,
                    kind=each.kind,
                    message=each.message,
                    traceback=each.traceback,
                ),
            )


def _last(of: Sources) -> Iterator[Ending]:
    """How it ended by its row, unless another source says so."""
    task = of.task
    if task.finished_at is None:
        return
    known = [line.at for line in of.transitions] + [each.ended_at for each in of.attempts]
    if task.finished_at in known:
        return
    ran = task.started_at is not None and task.state is not State.EXPIRED
    yield (
        _claim(task.attempt, task.started_at, task.owner) if ran else None,
        Moment(
            task.finished_at,
            _word("", task.state),
            task.attempt if ran else None,
            task.owner if ran else None,
            task.state,
            message=task.error,
        ),
    )


def _word(event: str, state: str) -> str:
    """Name its final state, or else why it came back."""
    return _OF_STATE.get(State(state)) or _BACK.get(event, event)


def _claim(attempt: int, at: datetime | None, owner: str | None) -> Moment | None:
    return None if at is None else Moment(at, "claimed", attempt, owner, State.RUNNING)


def _with_lines(moments: Sequence[Moment], logs: Sequence[LogOfAttempt]) -> Iterator[Moment]:
    """Put the log of an attempt where it ended, or else where it began."""
    places = {m.attempt: n for n, m in enumerate(moments) if m.attempt is not None}
    shown = {places[log.attempt]: log for log in logs if log.attempt in places}
    for n, moment in enumerate(moments):
        log = shown.get(n)
        yield moment if log is None else replace(moment, lines=log.lines, cut=log.cut)


def _folded(moments: Iterator[Moment]) -> list[Moment]:
    """Show each traceback once, where it came last."""
    shown: dict[str, int | None] = {}
    folded = []
    for moment in reversed(list(moments)):
        trace = moment.traceback
        if trace is not None and trace in shown:
            folded.append(replace(moment, traceback=None, traceback_of=shown[trace]))
            continue
        if trace is not None:
            shown[trace] = moment.attempt
        folded.append(moment)
    return folded[::-1]


_COLUMNS = ", ".join(field.name for field in fields(Transition))
_READ = text(f"""
    SELECT {_COLUMNS} FROM (
        SELECT id, {_COLUMNS} FROM {TRANSITION} WHERE task_id = :id ORDER BY id DESC LIMIT :most)
        AS newest
    ORDER BY at, from_state IS NOT NULL, id
""")


def transitions(connection: Connection, task_id: int, most: int = 200) -> list[Transition]:
    """Return the newest lines of a task, oldest first."""
    return [Transition(*row) for row in connection.execute(_READ, {"id": task_id, "most": most})]
