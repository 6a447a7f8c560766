"""Rotation: encrypts what older keys have encrypted again with the first one, beside workers.

A step is a short transaction. A value is replaced only while it is as it was read, so workers and a
second rotation do no harm, and a rotation that was stopped is simply started again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sqlalchemy import Engine

from tasks_app.domain.encryption import Keyring, MissingKeyError, SealBrokenError, wrap_token
from tasks_app.domain.errors import ConfigurationError
from tasks_app.pool.operations.audit import note
from tasks_app.pool.operations.encrypted_values import (
    PLACES,
    SecretColumn,
    Stored,
    ValuePage,
    read,
    replace,
)

ROWS = 1_000  # of a step: some ten milliseconds, in which it holds the rows that it changes
PASSES = 20  # over all places, at most; the next one finds a task that moves on meanwhile
PATIENT = 3  # passes that find only locked rows, before these are left


@dataclass(slots=True)
class Rotated:
    """What a rotation has done."""

    key: str  # which encrypts all now
    number: int = 0  # values that were encrypted again
    passes: int = 0
    missing: dict[str, int] = field(default_factory=dict)  # values left, by the key not here
    broken: dict[str, int] = field(default_factory=dict)  # by the key that does not open them
    busy: int = 0  # values left because their rows were locked in each pass

    @property
    def complete(self) -> bool:
        return not (self.missing or self.broken or self.busy)


def rotate(
    engine: Engine,
    keyring: Keyring,
    *,
    by: str = "",
    rows: int = ROWS,
    rest_s: float = 0.0,
    told: Callable[[Rotated], object] = lambda _: None,
) -> Rotated:
    """Encrypt all values with the first key; pause for ``rest_s`` between steps."""
    if keyring.current is None:
        raise ConfigurationError("No key is configured here. Set TASKS_APP_ENCRYPTION_KEYS.")
    done = Rotated(keyring.current)
    while done.passes < PASSES:
        done.passes += 1
        missing, broken = Counter[str](), Counter[str]()
        changed = busy = 0
        for place, step in _steps(engine, rows):
            changes = [
                (each, new)
                for each in step.found
                if each.token.key_id != keyring.current
                and (new := _sealed_again(keyring, place, each, missing, broken)) is not None
            ]
            if changes:
                with engine.begin() as connection:
                    written = replace(connection, place, changes)
                changed, busy = changed + written, busy + len(changes) - written
                done.number += written
                told(done)
                time.sleep(rest_s)
        done.missing, done.broken, done.busy = dict(missing), dict(broken), busy
        if not changed and (not busy or done.passes >= PATIENT):
            break
    with engine.begin() as connection:
        answers = {"rotated": done.number, "missing": sum(done.missing.values())}
        answers |= {"broken": sum(done.broken.values()), "busy": done.busy}
        note(connection, "encryption rotate", {"key": done.key}, who=by, answers=answers)
    return done


def _steps(engine: Engine, rows: int) -> Iterator[tuple[SecretColumn, ValuePage]]:
    for place in PLACES:
        after: int | None = -1
        while after is not None:
            with engine.begin() as connection:
                step = read(connection, place, after, min(rows, place.most))
            yield place, step
            after = step.after


def _sealed_again(
    keyring: Keyring, place: SecretColumn, old: Stored, missing: Counter[str], broken: Counter[str]
) -> str | None:
    """Return the stored form under the first key; None: it cannot be opened."""
    try:
        if old.task is None:
            raise SealBrokenError
        text = keyring.open(old.token, place.kind, old.task)
    except MissingKeyError:
        missing[old.token.key_id] += 1
        return None
    except SealBrokenError:
        broken[old.token.key_id] += 1
        return None
    token = keyring.seal(text, place.kind, old.task)
    return str(token) if place.kind == "error" else wrap_token(token)
