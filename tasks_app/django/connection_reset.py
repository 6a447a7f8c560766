"""Django's connection between two runs: its state made as new."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from tasks_app.domain.tasks.error_text import quiet_logger

log = quiet_logger(__name__)


def reset_connection(db: BaseDatabaseWrapper, *, close: bool = False) -> None:
    """Roll back, and set Django's bookkeeping to what it is outside of transactions.

    ``close``: something stays in the session that the next run would see.
    """
    raw = db.connection
    _forget(db)
    if raw is None:
        return
    with suppress(psycopg.Error):
        usable = raw.info.transaction_status in {
            TransactionStatus.IDLE,
            TransactionStatus.INTRANS,
            TransactionStatus.INERROR,
        }
        if usable and not (close or raw.closed):
            raw.rollback()
            raw.autocommit = db.autocommit = True
            db.errors_occurred = False
            return
    raw.close()  # first: a pool of Django's would lend it to others
    db.close()
    db.connection = None


def _forget(db: BaseDatabaseWrapper) -> None:
    db.execute_wrappers.clear()
    db.run_on_commit, db.savepoint_ids, db.atomic_blocks = [], [], []
    db.in_atomic_block = db.needs_rollback = db.closed_in_transaction = False


def release_others(alias: str) -> None:
    """End what the run left open on other databases, by the rules of Django's requests."""
    for other in connections.all(initialized_only=True):
        if other.alias == alias:
            continue
        if other.in_atomic_block:
            _forget(other)
            other.close()
        else:
            other.close_if_unusable_or_obsolete()


def run_hooks(hooks: Iterable[Any]) -> None:
    """Call what ``on_commit()`` took; their errors change nothing: the task has succeeded."""
    for _, hook, _ in hooks:
        try:
            hook()
        except Exception as error:
            name = getattr(hook, "__qualname__", type(hook).__name__)
            log.error("on_commit callback %s failed: %s", name, type(error).__name__)  # noqa: TRY400


def leave_to_parent() -> None:
    """Forget, in a forked process, the connections of its parent, whose sockets it shares."""
    for db in connections.all(initialized_only=True):
        _forget(db)
        db.connection = None
