"""Logical locks on groups of named resources, for handlers and for any other code.

``hold`` takes a group for the time of a ``with`` block; handlers have ``ctx.locks``, which does the
same and ends with their task. Whoever touches what the names stand for has to take them, too.
"""

from __future__ import annotations

from tasks_app.domain.errors import InvalidLockError
from tasks_app.domain.locks import LockDeniedError, LockLostError, LockOrderError, Obstacle
from tasks_app.runtime.locks.lock import Hold, Lock
from tasks_app.runtime.locks.online import hold

__all__ = [
    "Hold",
    "InvalidLockError",
    "Lock",
    "LockDeniedError",
    "LockLostError",
    "LockOrderError",
    "Obstacle",
    "hold",
]
