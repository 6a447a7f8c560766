"""No command shows what is masked, encrypted or kept outside of its row, unless asked."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from tasks_app import NewTask, create_group, create_schedule, create_task
from tasks_app.domain.encryption import new_key, read_keys
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.encryption.encryption import encryption
from tasks_app.runtime.large_values import large_values
from tests.cli.shell import Shell
from tests.factory import claimed_task, ending


@pytest.fixture
def keys(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    key = f"k1:{new_key()}"
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", key)
    monkeypatch.setenv("TASKS_APP_ENCRYPTED_TASKS", "t")
    encryption.cache_clear()
    yield key
    encryption.cache_clear()


@pytest.fixture
def encrypted_id(engine: Engine) -> int:
    with engine.begin() as connection:
        return create_task(connection, "t", {"card": "canary"})


@pytest.mark.usefixtures("keys")
def test_show_hides_and_decrypts(shell: Shell, encrypted_id: int) -> None:
    for more in ((), ("--json",)):
        hidden = shell("show", str(encrypted_id), *more)
        assert "encrypted (key k1)" in hidden.stdout
        assert "canary" not in hidden.stdout
        assert "canary" in shell("show", str(encrypted_id), "--decrypt", *more).stdout
    (listed,) = json.loads(shell("list", "--json").stdout)
    assert listed["payload"] == "encrypted (key k1)"


@pytest.mark.usefixtures("keys")
def test_without_a_key_it_says_so(
    shell: Shell, encrypted_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", "")
    encryption.cache_clear()
    refused = shell("show", str(encrypted_id), "--decrypt")
    assert refused.returncode == 1
    assert "No key is configured here" in refused.stderr


@pytest.mark.usefixtures("keys")
def test_a_new_key_can_be_used(shell: Shell) -> None:
    one, two = (shell("encryption", "new-key", "2026-11").stdout.strip() for _ in range(2))
    assert list(read_keys(one)) == ["2026-11"]
    assert one != two
    assert shell("encryption", "new-key", "2026.11").returncode == 2


@pytest.mark.usefixtures("keys")
def test_values_are_counted_and_change_to_another_key(
    shell: Shell, encrypted_id: int, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json.loads(shell("encryption", "status", "--json").stdout) == [
        {"place": "task_pending.payload", "key": "k1", "values": 1, "here": "encrypts"}
    ]
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", f"k2:{new_key()},{keys}")
    encryption.cache_clear()
    assert "decrypts" in shell("encryption", "status").stdout
    assert "1 value encrypted again with k2" in shell("encryption", "rotate").stdout
    assert "k2" in shell("encryption", "status").stdout
    assert "canary" in shell("show", str(encrypted_id), "--decrypt").stdout


@pytest.mark.usefixtures("keys")
def test_a_missing_key_is_an_answer(
    shell: Shell, encrypted_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", f"k2:{new_key()}")
    encryption.cache_clear()
    left = shell("encryption", "rotate")
    shown = shell("show", str(encrypted_id), "--decrypt")
    assert left.returncode == 1
    assert "1 value left: the key k1 is missing here" in left.stderr
    assert "encrypted (key k1)" in shown.stdout
    assert shown.stderr == "The keys of this process cannot decrypt everything.\n"


PAYLOAD = {"card": {"number": "canary-4711", "owner": "Ann"}}
QUOTES = Cause("ValueError", "canary-4711 is refused")


@pytest.fixture
def rules(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_MASKED_PATHS", "card.number")


@pytest.mark.usefixtures("rules")
def test_show_and_list_hide_it_and_older_errors_that_quote_it(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = create_task(connection, "t", PAYLOAD)
        older = """INSERT INTO task_attempt (task_id, attempt, event, kind, message, ended_at)
                   VALUES (:id, 1, 'retry', 'ValueError', 'no canary-4711', now())"""
        connection.execute(text(older), {"id": task_id})

    for command in (("show", str(task_id)), ("list",)):
        for more in ((), ("--json",)):
            said = shell(*command, *more)
            assert said.returncode == 0
            assert "canary" not in said.stdout
    assert "Ann" in shell("show", str(task_id)).stdout
    assert "no ***" in shell("show", str(task_id)).stdout
    assert "canary" not in shell("show", str(task_id), "--trail").stdout


@pytest.mark.usefixtures("rules")
def test_schedules_hide_what_is_masked(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        create_schedule(connection, "s", "t", PAYLOAD, every="1h")
    for command in (("schedules", "list", "--json"), ("schedules", "show", "s")):
        said = shell(*command)
        assert "canary" not in said.stdout
        assert "Ann" in said.stdout


@pytest.mark.usefixtures("rules")
@pytest.mark.test_all
def test_texts_that_were_stored_before_the_rule_are_hidden_too(
    shell: Shell, engine: Engine
) -> None:
    with engine.begin() as connection:
        group = create_group(connection, [NewTask("t", PAYLOAD)])
        failed = claimed_task(connection, group.task_ids[0])
        settle_one(connection, ending(failed, Event.FAIL, cause=QUOTES))
        retried = claimed_task(connection, payload=PAYLOAD)
        settle_one(connection, ending(retried, Event.RETRY, cause=QUOTES))
        query = text("SELECT encode(fingerprint, 'hex') FROM task_error")
        cause = connection.execute(query).scalar_one()

    for command in (
        ("errors",),
        ("errors", "show", cause),
        ("groups", "show", str(group.id)),
        ("explain", str(failed.fence.task_id)),
        ("explain", str(retried.fence.task_id)),
        ("list",),
        ("show", str(failed.fence.task_id), "--trail"),
    ):
        for more in ((), ("--json",)):
            said = shell(*command, *more)
            assert said.returncode == 0, command
            assert "canary" not in said.stdout, command
            assert "*** is refused" in said.stdout, command


@pytest.fixture
def kept_outside(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TASKS_APP_LARGE_VALUES", "database")
    large_values.cache_clear()
    yield
    large_values.cache_clear()


@pytest.mark.usefixtures("kept_outside")
def test_people_see_the_size_of_a_large_value(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = create_task(connection, "t", {"text": "x" * 100_000})
    said = "kept outside of the row (100011 bytes)"
    for more in ((), ("--json",)):
        assert said in shell("show", str(task_id), *more).stdout
    (listed,) = json.loads(shell("list", "--json").stdout)
    assert listed["payload"] == said
