"""``show`` hides what is encrypted unless asked; ``encryption`` makes and changes keys."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tasks_app import create_task
from tasks_app.domain.encryption import new_key, read_keys
from tasks_app.runtime.encryption.encryption import encryption
from tests.cli.shell import Shell


@pytest.fixture(autouse=True)
def keys(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    key = f"k1:{new_key()}"
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", key)
    monkeypatch.setenv("TASKS_APP_ENCRYPTED_TASKS", "t")
    encryption.cache_clear()
    yield key
    encryption.cache_clear()


@pytest.fixture
def task_id(engine: Engine) -> int:
    with engine.begin() as connection:
        return create_task(connection, "t", {"card": "canary"})


def test_show_hides_and_decrypts(shell: Shell, task_id: int) -> None:
    for more in ((), ("--json",)):
        hidden = shell("show", str(task_id), *more)
        assert "encrypted (key k1)" in hidden.stdout
        assert "canary" not in hidden.stdout
        assert "canary" in shell("show", str(task_id), "--decrypt", *more).stdout
    (listed,) = json.loads(shell("list", "--json").stdout)
    assert listed["payload"] == "encrypted (key k1)"


def test_without_a_key_it_says_so(
    shell: Shell, task_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", "")
    encryption.cache_clear()
    refused = shell("show", str(task_id), "--decrypt")
    assert refused.returncode == 1
    assert "No key is configured here" in refused.stderr


def test_a_new_key_can_be_used(shell: Shell) -> None:
    one, two = (shell("encryption", "new-key", "2026-11").stdout.strip() for _ in range(2))
    assert list(read_keys(one)) == ["2026-11"]
    assert one != two
    assert shell("encryption", "new-key", "2026.11").returncode == 2


def test_values_are_counted_and_change_to_another_key(
    shell: Shell, task_id: int, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json.loads(shell("encryption", "status", "--json").stdout) == [
        {"place": "task_pending.payload", "key": "k1", "values": 1, "here": "encrypts"}
    ]
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", f"k2:{new_key()},{keys}")
    encryption.cache_clear()
    assert "decrypts" in shell("encryption", "status").stdout
    assert "1 value encrypted again with k2" in shell("encryption", "rotate").stdout
    assert "k2" in shell("encryption", "status").stdout
    assert "canary" in shell("show", str(task_id), "--decrypt").stdout


def test_a_missing_key_is_an_answer(
    shell: Shell, task_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", f"k2:{new_key()}")
    encryption.cache_clear()
    left = shell("encryption", "rotate")
    shown = shell("show", str(task_id), "--decrypt")
    assert left.returncode == 1
    assert "1 value left: the key k1 is missing here" in left.stderr
    assert "encrypted (key k1)" in shown.stdout
    assert shown.stderr == "The keys of this process cannot decrypt everything.\n"
