"""An operator gives one task another payload, checked by its handler's model."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.operations import BulkAction, check_author, check_patched_payload
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.amend import change_payload
from tasks_app.runtime.api.producer import payload_limit
from tasks_app.runtime.encryption.values import is_secret, must_encrypt, sealed_payload
from tasks_app.runtime.handlers.registry import HANDLERS, Registry

_EDITABLE = {State.PENDING, State.FAILED}


def check_payload(name: str, payload: dict[str, Any], registry: Registry = HANDLERS) -> str:
    """Return the payload as JSON text, as the handler of this name takes it.

    Raises:
        InvalidSelectionError: its handler is not known here, or does not take it.
    """
    spec = registry.get(name)
    if spec is None:
        raise InvalidSelectionError(
            f"The handler of {name} is not known here. Start with TASKS_APP_IMPORTS=its.module."
        )
    return check_patched_payload(name, payload, spec, payload_limit())


def edit_payload(
    connection: Connection,
    task_id: int,
    payload: dict[str, Any],
    *,
    by: str = "",
    why: str = "",
    registry: Registry = HANDLERS,
) -> bool:
    """Give a task that waits, or has failed, another payload. False: it is neither.

    Raises:
        InvalidSelectionError: its handler is not known here, or does not take it.
    """
    wanted = check_author(by, why)
    while (task := browse.get(connection, task_id)) is not None and task.state in _EDITABLE:
        text = check_payload(task.name, payload, registry)
        spec = registry.get(task.name)
        if (
            is_secret(task.payload)
            or (spec and spec.encrypted)
            or must_encrypt(task.name, task.queue)
        ):
            text = sealed_payload(text, task.name)
        if change_payload(connection, Pool(task.pool), task_id, text, by=wanted):
            what = {"ids": [task_id], **wanted.reason}
            note(connection, BulkAction.EDIT, what, who=by, ids=[task_id])
            return True
    return False
