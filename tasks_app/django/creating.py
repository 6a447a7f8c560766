"""Creating tasks in atomic(), and handlers that run outside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from django.apps import apps
from django.db import connections

from tasks_app.django.configuration import database_alias
from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import ConfigurationError, InvalidConnectionError
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.records import TaskId
from tasks_app.runtime.api import producer


def create_task(
    task: Any,
    payload: Any = None,
    *,
    using: str | None = None,
    **options: Unpack[TaskOptions],
) -> TaskId:
    """Create one task in the open ``atomic()``: it exists if and only if that commits.

    Args:
        task: a handler, or a name.
        payload: of the type that the handler declares.
        using: Django's database that has our tables. Default: ``TASKS_APP["DATABASE"]``, or else
            ``default``.
        options: as those of ``tasks_app.create_task``.

    Raises:
        InvalidTaskError: refused before anything was written, with the path of the bad value.
        InvalidConnectionError: there is no ``atomic()`` on this database.
        django.db.transaction.TransactionManagementError: the transaction can only be rolled back.
        UniqueKeyTakenError: another task holds the key, and ``on_conflict`` is ``raise``.
    """
    return producer.create_task(connections[alias_to_write(using)], task, payload, **options)


def create_tasks(tasks: Sequence[NewTask], *, using: str | None = None) -> list[TaskId]:
    """Create any number of tasks, as :func:`create_task`; ids in the order of ``tasks``."""
    return producer.create_tasks(connections[alias_to_write(using)], tasks)


def alias_to_write(using: str | None) -> str:
    """Return the alias to write to.

    Raises:
        ConfigurationError: our app is not installed, so that no command would find the task.
        InvalidConnectionError: only another database has an open transaction.
    """
    if not apps.is_installed("tasks_app.django"):
        raise ConfigurationError("INSTALLED_APPS lacks 'tasks_app.django'. Add it, then migrate.")
    alias = using or database_alias()
    if not connections[alias].in_atomic_block:
        others = [
            other.alias
            for other in connections.all(initialized_only=True)
            if other.in_atomic_block and other.alias != alias
        ]
        if others:
            raise InvalidConnectionError(
                f"The open transaction is of Django's database {others[0]!r}, and tasks are "
                f"written to {alias!r}. Open transaction.atomic(using={alias!r}), too."
            )
    return alias


F = TypeVar("F", bound=Callable[..., Any])
NON_ATOMIC = "_tasks_app_non_atomic"
"""The attribute of a handler's function that says so."""


def non_atomic(function: F) -> F:
    """Call a handler outside of ``atomic()``: what it writes through Django commits by itself.

    So it may be done twice, if its process dies before the outcome is written. For code that needs
    ``atomic(durable=True)``. It stands below ``@handler``.
    """
    setattr(function, NON_ATOMIC, True)
    return function
