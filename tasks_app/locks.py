"""Logical locks on groups of named resources, for handlers and for any other code.

``hold`` takes a group for a ``with`` block; handlers have ``ctx.locks``, which does the same and
ends with their task. A lock protects only against code that takes it, too.
"""

from __future__ import annotations

from tasks_app.domain.errors import InvalidLockError
from tasks_app.domain.locks import (
    LockDeniedError,
    LockLostError,
    LockOrderError,
    LostUpdateError,
    Obstacle,
)
from tasks_app.domain.tasks.options import Locks
from tasks_app.runtime.locks.client import Hold, hold
from tasks_app.runtime.locks.lock import Lock
from tasks_app.runtime.locks.row_locks import HoldRow, LockedRow, RowLock, Versioned, hold_row

__all__ = [
    "Hold",
    "HoldRow",
    "InvalidLockError",
    "Lock",
    "LockDeniedError",
    "LockLostError",
    "LockOrderError",
    "LockedRow",
    "Locks",
    "LostUpdateError",
    "Obstacle",
    "RowLock",
    "Versioned",
    "hold",
    "hold_row",
]
