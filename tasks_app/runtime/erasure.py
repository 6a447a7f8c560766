"""Erasure: what tasks of a key or subject hold is removed in stages, with a receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

from sqlalchemy import Engine

from tasks_app.domain.operations.selection import Action
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.operations import erase as rows
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tasks.cancel import cancel_these
from tasks_app.pool.tasks.large_values import outside
from tasks_app.runtime.large_values.values import large_values

STEP = 500
"""Tasks in one transaction."""


@dataclass(slots=True)
class Receipt:
    """What an erasure did. It holds nothing of what was erased."""

    at: datetime
    by: str
    why: str
    biz_keys: tuple[str, ...]
    subject_sha256: str | None
    """Of the subject as UTF-8: it shows whether the receipt is about somebody one knows."""
    tasks: int = 0
    """That are over and meant."""
    rows: dict[str, int] = field(default_factory=dict)
    """That changed, by table."""
    cancelled: int = 0
    waiting: int = 0
    """Tasks that were left, because they are still to run."""
    running: int = 0
    """Tasks that were left, because they run."""
    open_bulks: tuple[int, ...] = ()
    """Bulks whose lines in the audit were left, because they go on."""
    audit: int | None = None
    """The line in the audit. None: it was a preview."""

    @property
    def complete(self) -> bool:
        return not (self.waiting or self.running or self.open_bulks)


def preview_erasure(
    engine: Engine, biz_keys: Sequence[str], subject: str | None, *, by: str = "", why: str = ""
) -> Receipt:
    """Return which tasks are meant; nothing is written."""
    with engine.begin() as connection:
        meant = rows.find(connection, biz_keys, subject)
        receipt = _receipt(instant(connection), biz_keys, subject, by, why)
        receipt.open_bulks = tuple(rows.open_bulks(connection, meant.over, biz_keys))
    receipt.tasks, receipt.waiting = len(meant.over), len(meant.waiting)
    receipt.running = len(meant.running)
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
    """Erase what tasks hold that are over, and say so in the audit.

    ``cancel``: those that wait are cancelled first, and those that run are told to stop. What still
    waits or runs is left and counted: call it again when that is over.

    Raises:
        SchemaError: this role may not.
        LargeStoreError: the object store does not answer. Call it again.
    """
    with engine.begin() as connection:
        rows.check_may_erase(connection)
    cancelled = _cancel(engine, biz_keys, subject, by) if cancel else 0
    with engine.begin() as connection:
        meant = rows.find(connection, biz_keys, subject)
        receipt = _receipt(instant(connection), biz_keys, subject, by, why)
    changed = Counter[str]()
    for ids in _steps(meant.over):
        with engine.begin() as connection:
            objects = outside(connection, ids)
        if objects:  # first: once the rows are gone, nobody knows whose they are
            large_values().remove(objects)
        with engine.begin() as connection:
            changed.update(rows.erase(connection, ids))
    with engine.begin() as connection:
        changed["task_audit"] = rows.erase_audit(connection, meant.over, biz_keys)
        left = rows.find(connection, biz_keys, subject)
        receipt.tasks, receipt.rows, receipt.cancelled = len(meant.over), dict(changed), cancelled
        receipt.waiting, receipt.running = len(left.waiting), len(left.running)
        receipt.open_bulks = tuple(rows.open_bulks(connection, meant.over, biz_keys))
        what = {"biz_keys": list(biz_keys), "subject_sha256": receipt.subject_sha256, "for": why}
        answers = {**changed, "waiting": receipt.waiting, "running": receipt.running}
        receipt.audit = note(
            connection,
            "erase",
            {word: value for word, value in what.items() if value},
            who=by,
            number=len(meant.over),
            ids=meant.over,
            answers=answers,
        )
    return receipt


def _cancel(engine: Engine, biz_keys: Sequence[str], subject: str | None, by: str) -> int:
    with engine.begin() as connection:
        meant = rows.find(connection, biz_keys, subject)
    done = 0
    for ids in _steps(sorted(meant.waiting + meant.running)):
        with engine.begin() as connection:
            answer = cancel_these(connection, ids)
            done += answer.cancelled
            answers = {"cancelled": answer.cancelled, "requested": answer.requested}
            note(connection, Action.CANCEL, who=by, ids=answer.ids, answers=answers)
    return done


def _steps(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), STEP):
        yield ids[start : start + STEP]


def _receipt(
    at: datetime, biz_keys: Sequence[str], subject: str | None, by: str, why: str
) -> Receipt:
    digest = None if subject is None else sha256(subject.encode()).hexdigest()
    return Receipt(at, by, why, tuple(biz_keys), digest)
