"""Values of tasks: encrypted on their way into the pool, and opened where the key is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tasks_app.domain.encryption import (
    MissingKeyError,
    SealBrokenError,
    conceal_value,
    parse_token,
    token_of,
)
from tasks_app.domain.errors import ConfigurationError, UnreadableTaskError
from tasks_app.domain.large_values.store import describe_large_value, reference_of
from tasks_app.domain.tasks.masks import Masks, masks_of
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.records import Attempt, Task, TaskRow
from tasks_app.runtime.encryption.encryption import ERROR, PAYLOAD, RESULT, encryption


def must_encrypt(name: str, queue: str) -> bool:
    """Whether the settings encrypt such tasks."""
    return encryption().asks(name, queue)


def sealed_payload(text: str, name: str) -> str:
    """Encrypt a new payload; ConfigurationError: there is no key."""
    try:
        return encryption().sealed(text, PAYLOAD, name)
    except MissingKeyError:
        raise ConfigurationError(
            f"Tasks named {name} are encrypted, but no key is configured here. "
            "Set TASKS_APP_ENCRYPTION_KEYS; tasks-app encryption new-key makes a key."
        ) from None


def sealed_rows(
    rows: Sequence[TaskRow], handlers: Collection[str] = frozenset()
) -> Sequence[TaskRow]:
    """Encrypt payloads by settings and terms, and those of ``handlers``, which encrypt."""
    asks, patterns = encryption().asks, encryption().patterns
    if not (patterns or handlers or any(row.terms.encrypted for row in rows)):
        return rows
    return [
        row._replace(payload=sealed_payload(row.payload, row.name))
        if row.terms.encrypted
        or row.name in handlers
        or (patterns and asks(row.name, row.terms.queue))
        else row
        for row in rows
    ]


def opened_task(task: Task) -> Task:
    """Return a task with what can be decrypted here; the rest stays as stored."""
    if token_of(task.payload) is None and token_of(task.result) is None:
        return task
    payload = _opened_value(task.payload, PAYLOAD, task.name)
    return replace(task, payload=payload, result=opened_result(task.result, task.name))


def is_encrypted(task: Task, attempts: Sequence[Attempt]) -> bool:
    return any(is_secret(value) for value in (task.payload, task.result)) or any(
        each.encrypted_message is not None for each in attempts
    )


def masks() -> Masks:
    from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

    return masks_of(load_settings().masked_paths)


def concealed_task(task: Task) -> Task:
    """Return a task as people may see it: masked, with a note for encrypted and large values."""
    rules = masks()
    payload, result = (
        shown(value)
        if token_of(value) is not None or reference_of(value) is not None
        else rules.value(task.name, value)
        for value in (task.payload, task.result)
    )
    error = None if task.error is None else rules.text(task.name, task.error, task.payload)
    return replace(task, payload=payload, result=result, error=error)


def shown(value: object) -> object:
    """Return what people see of a stored value, without loading or decrypting it."""
    return describe_large_value(conceal_value(value))


def concealed_attempts(attempts: Sequence[Attempt], task: Task) -> list[Attempt]:
    rules = masks()
    return [
        replace(
            each, encrypted_message=None, message=rules.text(task.name, each.message, task.payload)
        )
        for each in attempts
    ]


def opened_attempts(attempts: Sequence[Attempt], name: str) -> list[Attempt]:
    return [
        each
        if each.encrypted_message is None
        else replace(each, message=_opened_message(each, name), encrypted_message=None)
        for each in attempts
    ]


def opened_result(value: object, name: str) -> object:
    return _opened_value(value, RESULT, name)


def opened_value(value: object, kind: str, name: str) -> object:
    """Return a decoded JSON value, decrypted if it was encrypted. The errors of Keyring.open."""
    token = token_of(value)
    if token is None:
        return value
    return decode(encryption().opened_token(token, kind, name), kind)


def is_secret(value: object) -> bool:
    """Whether a stored value is encrypted, in its row or outside of it."""
    reference = reference_of(value)
    return token_of(value) is not None if reference is None else reference.encrypted


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
