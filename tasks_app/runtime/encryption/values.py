"""Values of tasks on their way into the pool and out of it: encrypted, and opened where it can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tasks_app.domain.encryption.envelope import MARK, parse_token, token_in, token_of
from tasks_app.domain.encryption.keyring import MissingKeyError, SealBrokenError
from tasks_app.domain.errors import ConfigurationError, InvalidTaskError, UnreadableTaskError
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.records import Attempt, Task, TaskRow
from tasks_app.runtime.encryption.encryption import ERROR, PAYLOAD, RESULT, encryption


def sealed_payload(text: str, name: str) -> str:
    """Return a new payload encrypted.

    Raises:
        ConfigurationError: there is no key.
    """
    try:
        return encryption().sealed(text, PAYLOAD, name)
    except MissingKeyError:
        raise ConfigurationError(
            f"Tasks named {name} are encrypted, and no key is configured here. "
            "Set TASKS_APP_ENCRYPTION_KEYS; tasks-app encryption new-key makes a key."
        ) from None


def sealed_rows(rows: Sequence[TaskRow], asks: Callable[[TaskRow], bool]) -> Sequence[TaskRow]:
    """Return checked rows, with the payloads of those encrypted that it is asked for."""
    return [
        row._replace(payload=sealed_payload(row.payload, row.name)) if asks(row) else row
        for row in rows
    ]


def check_no_token(text: str) -> None:
    """Pass if nobody hands in a stored token as a payload: a handler would be given its secret.

    Raises:
        InvalidTaskError: it is one.
    """
    if token_in(text) is not None:
        raise InvalidTaskError(f"payload.{MARK}", "is an encrypted value", "the value itself")


def opened_task(task: Task) -> Task:
    """Return a task with what can be decrypted here; the rest is as stored."""
    if token_of(task.payload) is None and token_of(task.result) is None:
        return task
    values = {
        kind: _opened_value(getattr(task, kind), kind, task.name) for kind in (PAYLOAD, RESULT)
    }
    return replace(task, **values)


def opened_attempts(attempts: Sequence[Attempt], name: str) -> list[Attempt]:
    """Return attempts with the texts that can be decrypted here."""
    return [
        each
        if each.encrypted_message is None
        else replace(each, message=_opened_message(each, name), encrypted_message=None)
        for each in attempts
    ]


def opened_value(value: object, kind: str, name: str) -> object:
    """Return a decoded JSON value as it was before it was encrypted.

    Raises:
        MissingKeyError: its key is not here.
        SealBrokenError: it is no value of this kind and name.
    """
    token = token_of(value)
    if token is None:
        return value
    return decode(encryption().opened_token(token, kind, name), kind)


def _opened_value(value: object, kind: str, name: str) -> object:
    try:
        return opened_value(value, kind, name)
    except (MissingKeyError, SealBrokenError, UnreadableTaskError, ConfigurationError):
        return value


def _opened_message(attempt: Attempt, name: str) -> str:
    token = parse_token(attempt.encrypted_message or "")
    try:
        return attempt.message if token is None else encryption().opened_token(token, ERROR, name)
    except (MissingKeyError, SealBrokenError, ConfigurationError):
        return attempt.message
