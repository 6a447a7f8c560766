"""Rotation: what older keys have encrypted is encrypted anew by the first one, beside workers.

A step is a short transaction. A value is replaced only while it is as it was read, so neither
workers nor a second rotation can be in the way, and one that was stopped is simply started again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sqlalchemy import Engine

from tasks_app.domain.encryption import Keyring, MissingKeyError, SealBrokenError, wrapped
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

ROWS = 1_000
"""That a step looks at: some ten milliseconds, in which it holds the rows that it changes."""
PASSES = 20
"""Over all places, at most. A task that moves on meanwhile is found by the next one."""

PATIENT = 3
"""Passes in which nothing but rows that somebody holds was found, before they are left."""


@dataclass(slots=True)
class Rotated:
    """What a rotation has done."""

    key: str
    """By which all is encrypted now."""
    number: int = 0
    """Values that were encrypted anew."""
    passes: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    """Values that are left, by the key that is missing here."""
    broken: dict[str, int] = field(default_factory=dict)
    """Values that are left because their key does not open them, by key."""
    busy: int = 0
    """Values that are left because somebody held their rows in each pass."""

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
    """Encrypt anew whatever the first key has not encrypted; ``rest_s`` is between steps.

    Raises:
        ConfigurationError: there is no key.
    """
    if keyring.current is None:
        raise ConfigurationError("No key is configured here. Set TASKS_APP_ENCRYPTION_KEYS.")
    done = Rotated(keyring.current)
    while done.passes < PASSES:
        done.passes += 1
        changed = _pass(engine, keyring, done, rows, rest_s, told)
        if not changed and (not done.busy or done.passes >= PATIENT):
            break
    with engine.begin() as connection:
        answers = {"rotated": done.number, "missing": sum(done.missing.values())}
        answers |= {"broken": sum(done.broken.values()), "busy": done.busy}
        note(connection, "encryption rotate", {"key": done.key}, who=by, answers=answers)
    return done


def _pass(
    engine: Engine,
    keyring: Keyring,
    done: Rotated,
    rows: int,
    rest_s: float,
    told: Callable[[Rotated], object],
) -> int:
    missing, broken = Counter[str](), Counter[str]()
    changed = busy = 0
    for place in PLACES:
        for step in _steps(engine, place, rows):
            old = [each for each in step.found if each.token.key_id != keyring.current]
            changes = [
                (each, new)
                for each in old
                if (new := _anew(keyring, place, each, missing, broken)) is not None
            ]
            if changes:
                with engine.begin() as connection:
                    written = replace(connection, place, changes)
                changed, busy = changed + written, busy + len(changes) - written
                done.number += written
                told(done)
                time.sleep(rest_s)
    done.missing, done.broken, done.busy = dict(missing), dict(broken), busy
    return changed


def _steps(engine: Engine, place: SecretColumn, rows: int) -> Iterator[ValuePage]:
    after: int | None = -1
    while after is not None:
        with engine.begin() as connection:
            step = read(connection, place, after, min(rows, place.most))
        yield step
        after = step.after


def _anew(
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
    return str(token) if place.kind == "error" else wrapped(token)
