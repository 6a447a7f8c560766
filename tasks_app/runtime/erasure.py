"""Erasure: removes in stages what tasks of a key or subject hold, with a receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from itertools import chain

from sqlalchemy import Connection, Engine

from tasks_app.domain.operations import BulkAction
from tasks_app.pool.operations import erase as rows
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tables import database_now
from tasks_app.pool.tasks.cancel import cancel_these
from tasks_app.pool.tasks.large_values import values_in_object_store
from tasks_app.runtime.large_values import large_values

STEP = 500  # tasks in one transaction
ROUNDS = 10


@dataclass(slots=True)
class Receipt:
    """What an erasure did. It holds no part of what was erased."""

    at: datetime
    by: str
    why: str
    biz_keys: tuple[str, ...]
    subject_sha256: str | None  # of the subject as UTF-8, to compare with a known one
    tasks: int = 0  # that are over and meant
    rows: dict[str, int] = field(default_factory=dict)  # that changed, by table
    cancelled: int = 0
    waiting: int = 0  # tasks that were left, because they are still to run
    running: int = 0  # tasks that were left, because they run
    callbacks: int = 0  # groups that go on and are to call such a task
    schedules: tuple[str, ...] = ()  # that create such tasks, and hold their payload
    open_bulks: tuple[int, ...] = ()  # bulks that go on, so their audit lines were left
    audit: int | None = None  # the line in the audit; None: it was a preview

    @property
    def complete(self) -> bool:
        left = (self.waiting, self.running, self.callbacks, self.schedules, self.open_bulks)
        return not any(left)


def preview_erasure(
    engine: Engine, biz_keys: Sequence[str], subject: str | None, *, by: str = "", why: str = ""
) -> Receipt:
    """Return which tasks are meant; nothing is written."""
    whose = rows.ErasureKeys(biz_keys, subject)
    with engine.begin() as connection:
        receipt = _receipt(database_now(connection), whose, by, why)
        meant = _record_left(connection, receipt, whose)
    receipt.tasks = len(meant.over)
    return receipt


def erase(
    engine: Engine,
    biz_keys: Sequence[str],
    subject: str | None,
    *,
    cancel: bool = False,
    by: str = "",
    why: str = "",
) -> Receipt:
    """Erase what tasks hold that are over, and note it in the audit.

    ``cancel``: waiting tasks are cancelled first, tasks that groups are to call are skipped, and
    running tasks are asked to stop. What still waits or runs is left and counted: call it again
    when that is over.
    Raises SchemaError: this role may not; LargeStoreError: the object store does not answer. Call
    it again.
    """
    whose = rows.ErasureKeys(biz_keys, subject)
    with engine.begin() as connection:
        rows.check_may_erase(connection)
        receipt = _receipt(database_now(connection), whose, by, why)
    changed, done = Counter[str](), set[int]()
    with engine.begin() as connection:  # first: cancelled members may end their groups
        changed["task_group"] = rows.erase_callbacks(connection, whose, open_too=cancel)
    if cancel:
        receipt.cancelled = _cancel(engine, whose, by)
    for _ in range(ROUNDS):  # tasks end meanwhile, or come back
        with engine.begin() as connection:
            over = [id_ for id_ in rows.find(connection, whose).over if id_ not in done]
        if not over:
            break
        for ids in _steps(over):
            with engine.begin() as connection:
                done.update(_erase(connection, ids, changed))
    with engine.begin() as connection:
        ids = sorted(done)
        changed["task_audit"] = rows.erase_audit(connection, ids, biz_keys)
        meant = _record_left(connection, receipt, whose, done)
        receipt.running += len(set(meant.over) - done)  # what moved in each round
        receipt.tasks, receipt.rows = len(done), dict(changed)
        what = {"biz_keys": list(biz_keys), "subject_sha256": receipt.subject_sha256, "for": why}
        what = {word: value for word, value in what.items() if value}
        answers = {**changed, "waiting": receipt.waiting, "running": receipt.running}
        receipt.audit = note(
            connection, "erase", what, who=by, number=len(ids), ids=ids, answers=answers
        )
    return receipt


def _erase(connection: Connection, ids: Sequence[int], changed: Counter[str]) -> list[int]:
    found = rows.erase_rows(connection, ids)
    done = sorted(chain.from_iterable(found.values()))
    objects = values_in_object_store(connection, done)
    if objects:  # first: without the rows their owners are unknown
        large_values().remove(objects)
    changed.update({table: len(ids) for table, ids in found.items()})
    changed.update(rows.erase_beside(connection, done))
    return done


def _record_left(
    connection: Connection, receipt: Receipt, whose: rows.ErasureKeys, done: Collection[int] = ()
) -> rows.ErasureTasks:
    """Enter what is left into the receipt; return the meant tasks."""
    meant = rows.find(connection, whose)
    receipt.waiting, receipt.running = len(meant.waiting), len(meant.running)
    receipt.callbacks = rows.count_callers(connection, whose)
    receipt.schedules = tuple(rows.schedules_of(connection, whose))
    ids = sorted({*meant.over, *done})
    receipt.open_bulks = tuple(rows.open_bulks(connection, ids, whose.biz_keys))
    return meant


def _cancel(engine: Engine, whose: rows.ErasureKeys, by: str) -> int:
    with engine.begin() as connection:
        meant = rows.find(connection, whose)
    done = 0
    for ids in _steps(sorted(meant.waiting + meant.running)):
        with engine.begin() as connection:
            answer = cancel_these(connection, ids)
            done += answer.cancelled
            answers = {"cancelled": answer.cancelled, "requested": answer.requested}
            note(connection, BulkAction.CANCEL, who=by, ids=answer.ids, answers=answers)
    return done


def _steps(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), STEP):
        yield ids[start : start + STEP]


def _receipt(at: datetime, whose: rows.ErasureKeys, by: str, why: str) -> Receipt:
    digest = None if whose.subject is None else sha256(whose.subject.encode()).hexdigest()
    return Receipt(at, by, why, tuple(whose.biz_keys), digest)
