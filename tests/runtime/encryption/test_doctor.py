"""What doctor says of keys: unreadable, missing here, missing in a worker; and in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks_app import Settings
from tasks_app.domain.encryption import NO_KEY
from tasks_app.monitor.checks.checkup import run_checks
from tasks_app.monitor.checks.database import LOOKED_AT, keys
from tests.runtime.bench import Bench
from tests.runtime.encryption.conftest import NEW, OLD, Configure

Say = Callable[..., list[str]]


@pytest.fixture
def say(bench: Bench) -> Say:
    def ask(**given: Any) -> list[str]:
        settings = Settings(database_url=bench.url, **given)
        findings = run_checks((keys,), bench.engine, settings)
        assert {finding.subject for finding in findings} <= {"encryption"}
        return [f"{f.level} {f.fact}. {f.advice}".removesuffix(". ") for f in findings]

    return ask


def test_who_encrypts_nothing_hears_nothing(say: Say) -> None:
    assert say() == []


def test_the_key_that_encrypts_is_named_and_no_key_is_shown(say: Say) -> None:
    assert say(encryption_keys=f"{NEW},{OLD}") == ["ok 2 keys here, and new encrypts"]


def test_keys_that_cannot_be_read_are_a_failure(say: Say, tmp_path: Path) -> None:
    (refused,) = say(encryption_keys_file=str(tmp_path / "none"))

    assert refused == (
        "fail TASKS_APP_ENCRYPTION_KEYS_FILE is wrong: it cannot be read: No such file or "
        "directory. Fix it: encrypted tasks neither run nor are created here."
    )


def test_tasks_that_are_to_be_encrypted_without_a_key_are_a_failure(say: Say) -> None:
    (refused,) = say(encrypted_tasks="patient.*")

    assert refused.startswith("fail tasks are to be encrypted, but no key is configured. Set TASKS")


def test_a_key_of_stored_values_that_is_missing_here_is_named_with_a_place(
    say: Say,
    bench: Bench,
    configure: Configure,
) -> None:
    configure(encrypted_tasks="t")
    bench.create(payload={"n": 1})
    configure(encryption_keys=NEW, encrypted_tasks="")
    for _ in range(LOOKED_AT):
        bench.create()

    (warned,) = say(encryption_keys=NEW)
    (not_meant,) = say(encryption_keys=None)

    assert warned == (
        "warn values are encrypted by keys that are missing here: old (task_pending.payload). Add "
        "it behind the first. How many values: tasks-app encryption status"
    )
    assert not_meant == (
        "ok no key is configured here, and values are encrypted by old (task_pending.payload)"
    )
    assert say(encryption_keys=f"{NEW},{OLD}") == ["ok 2 keys here, and new encrypts"]


@pytest.mark.parametrize(
    ("key", "fact", "advice"),
    [
        ("old", "the key old, which a worker lacks", "the key, behind the first"),
        ("new", "the key new, which a worker lacks", "the key that is here, behind the first"),
        (NO_KEY, "a key, and a worker has none", "a key"),
    ],
)
def test_tasks_that_wait_for_a_key_of_a_worker_are_a_failure(
    say: Say, bench: Bench, key: str, fact: str, advice: str
) -> None:
    bench.create()
    bench.sql("UPDATE task_pending SET parked_kind = 'encryption', parked_for = :key", key=key)

    assert say(encryption_keys=NEW) == [
        f"fail 1 task waiting for {fact}. Give all workers {advice}."
    ]
