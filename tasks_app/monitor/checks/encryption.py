"""Are the keys here by which values are encrypted? Their ids are shown, never the keys."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.encryption import NO_KEY
from tasks_app.domain.encryption import check_package
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.explain.words import count
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.operations.encrypted_values import keys_at_the_ends, waiting_for_keys
from tasks_app.runtime.encryption.keys import keys_of
from tasks_app.runtime.handlers.registry import HANDLERS

LOOKED_AT = 100
"""Rows of each end of a table: ``tasks-app encryption status`` reads all."""
SUBJECT = "encryption"


def keys(connection: Connection, settings: Settings) -> list[Finding]:
    """Can they be read, does a task wait for one, and do stored values need one that lacks?"""
    try:
        here = keys_of(settings)
        if here:
            check_package()
    except ConfigurationError as error:
        fact, _, advice = str(error).rstrip(".").partition(". ")
        advice = f"{advice or 'Correct it: what is encrypted neither runs nor is created here'}."
        return [fail(SUBJECT, fact, advice)]
    findings = [*_waiting(connection, here), *_lacking(connection, here)]
    if not here and (settings.encrypted or any(spec.encrypted for spec in HANDLERS)):
        advice = "Set TASKS_APP_ENCRYPTION_KEYS: tasks-app encryption new-key makes one."
        findings.append(
            fail(SUBJECT, "tasks are to be encrypted, and no key is configured", advice)
        )
    if here and not findings:
        first = next(iter(here))
        return [ok(SUBJECT, f"{count(len(here), 'key')} here, and {first} encrypts")]
    return findings


def _waiting(connection: Connection, here: dict[str, bytes]) -> list[Finding]:
    findings = []
    for key, number in waiting_for_keys(connection).items():
        fact, advice = f"the key {key}, which a worker lacks", "the key, behind the first"
        if key == NO_KEY:
            fact, advice = "a key, and a worker has none", "a key"
        elif key in here:
            advice = "the key that is here, behind the first"
        fact = f"{count(number, 'task')} waiting for {fact}"
        findings.append(fail(SUBJECT, fact, f"Give all workers {advice}."))
    return findings


def _lacking(connection: Connection, here: dict[str, bytes]) -> list[Finding]:
    """Without any key, this is a process that is not meant to read values."""
    found = keys_at_the_ends(connection, LOOKED_AT)
    lacking = sorted(found.keys() - here.keys())
    if not lacking:
        return []
    named = ", ".join(f"{key} ({found[key]})" for key in lacking)
    if not here:
        return [ok(SUBJECT, f"no key is configured here, and values are encrypted by {named}")]
    advice = "Add it behind the first. How many values: tasks-app encryption status"
    return [warn(SUBJECT, f"values are encrypted by keys that are missing here: {named}", advice)]


CHECKS: tuple[Check, ...] = (keys,)
