"""Keys come from a variable, a file or a function, and are shown nowhere."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tasks_app import Settings, TaskContext
from tasks_app.broker.events import shown
from tasks_app.domain.config.setting_sources import effective_settings
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.encryption import NO_KEY, new_key
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.tasks.masks import Masks
from tasks_app.monitor.checks.checkup import run_checks
from tasks_app.monitor.checks.database import LOOKED_AT, keys
from tasks_app.pool.runs.claim import PAYLOADS_UP_TO
from tasks_app.runtime.encryption.encryption import Encryption, keys_of
from tests.runtime.bench import Bench
from tests.runtime.encryption.conftest import NEW, OLD, Configure

KEY = new_key()


def text_of_keys() -> str:
    return f"k1:{KEY}"


def dict_of_keys() -> dict[str, object]:
    return {"k1": KEY, "k2": b"k" * 32}


def failing() -> str:
    raise RuntimeError("canary")


def test_each_source_gives_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# comment\nk1:{KEY}\n")
    here = __name__
    assert list(keys_of(Settings(encryption_keys=f"k1:{KEY}"))) == ["k1"]
    assert list(keys_of(Settings(encryption_keys_file=str(file)))) == ["k1"]
    assert list(keys_of(Settings(encryption_keys_from=f"{here}:text_of_keys"))) == ["k1"]
    assert list(keys_of(Settings(encryption_keys_from=f"{here}:dict_of_keys"))) == ["k1", "k2"]
    assert keys_of(Settings()) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"encryption_keys_file": "/nowhere/keys"}, "cannot be read: No such file"),
        ({"encryption_keys_from": "nowhere:keys"}, "isn.t a function"),
        ({"encryption_keys_from": "nowhere"}, "isn.t a function"),
        ({"encryption_keys_from": f"{__name__}:failing"}, "its function raised RuntimeError"),
        ({"encryption_keys_from": "a:b", "encryption_keys_file": "c"}, "are both set"),
    ],
)
def test_what_is_wrong_is_said_without_a_value(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refusal:
        keys_of(Settings(**given))
    assert "canary" not in str(refusal.value)


def test_a_wrong_variable_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", "k1:canary")
    with pytest.raises(ConfigurationError, match="TASKS_APP_ENCRYPTION_KEYS is wrong") as refusal:
        load_settings()
    assert "canary" not in str(refusal.value)


def test_a_wrong_pattern_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTED_TASKS", "a b")
    with pytest.raises(ConfigurationError, match="TASKS_APP_ENCRYPTED_TASKS is wrong: use names"):
        load_settings()


@pytest.mark.parametrize(
    "key",
    [
        base64.b64encode(b"k" * 32).decode(),
        base64.b64encode(b"\xff" * 32).decode(),
        "//" + "A" * 41 + "=",
    ],
)
def test_settings_show_ids_alone(key: str) -> None:
    """The last one, behind ``k1:``, looks like a URL without a password."""
    settings = Settings(encryption_keys=f"k1:{key},k2:{KEY}")
    (shown,) = (e for e in effective_settings(settings) if e.name == "TASKS_APP_ENCRYPTION_KEYS")
    assert shown.value == "k1:***,k2:***"
    for printed in (repr(settings), str(settings), settings.model_dump_json()):
        assert key not in printed
        assert KEY not in printed


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigurationError, match=r"tasks_app\[encryption\]"):
        Encryption(Settings(encryption_keys=f"k1:{KEY}")).sealed("{}", "payload", "t")
    Encryption(Settings()).keyring  # noqa: B018  nobody needs it without keys


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


def test_a_missing_key_is_named_with_a_place(say: Say, bench: Bench, configure: Configure) -> None:
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


CANARY, RULES = "canary-4711", "card.number,t:token_of.**"
PAYLOAD = {"card": {"number": CANARY, "owner": "Ann"}}


def quoting(bench: Bench, **options: Any) -> None:
    @bench.handler("t", max_attempts=1, **options)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        bench.runs.append(payload)
        raise ValueError(f"{payload['card']['number']} of {payload['card']['owner']} is refused")


def test_no_error_text_quotes_it_wherever_it_is_stored(bench: Bench) -> None:
    quoting(bench)
    task_id = bench.create(payload=PAYLOAD)
    bench.execute([task_id], masked_paths=RULES)
    assert bench.runs == [PAYLOAD]
    assert bench.attempts(task_id)[0].message == "*** of Ann is refused"
    for table in ("task_attempt", "task_fingerprint", "task_transition", "task_log"):
        assert CANARY not in str(bench.sql(f"SELECT json_agg(x)::text FROM {table} x"))
    assert CANARY not in str(bench.sql("SELECT error FROM task_error"))


def test_of_a_payload_that_was_too_large_to_be_claimed_no_text_is_kept(bench: Bench) -> None:
    quoting(bench)
    task_id = bench.create(payload={**PAYLOAD, "long": token_hex(PAYLOADS_UP_TO)})
    bench.execute([task_id], masked_paths=RULES)
    assert bench.attempts(task_id)[0].message == "***"


def test_flower_is_not_shown_it() -> None:
    given = shown("payload", json.dumps(PAYLOAD), ("card",), "t", Masks(RULES))
    assert CANARY not in str(given)
    assert "Ann" in str(given)


LONG = "".join(f"{n:04d}-" for n in range(60))
"""A number longer than what PostgreSQL quotes."""
CUTS = {
    "detail": "INSERT INTO cut VALUES (:card, NULL)",
    "context": "SELECT CAST(:json AS jsonb)",
    "line": "SELECT '{card}' FROM nowhere",
    "raised": """DO $$ BEGIN RAISE 'no' USING DETAIL = left('{card}', 70); END $$""",
}
WRAPPED = {
    "as it is": lambda error: error,
    "the driver's": lambda error: error.orig,
    "quoted": lambda error: ValueError(f"no: {error}"),
    "as code": lambda error: ValueError(repr(error.orig)),
    "its detail": lambda error: ValueError(f"{error.orig.diag.message_detail}"),
    "its context": lambda error: ValueError(f"{error.orig.diag.context}"),
    "group": lambda error: ExceptionGroup(f"{error}", [error]),
}


def test_nothing_is_stored_of_what_the_database_cut(bench: Bench) -> None:
    @bench.handler("t", max_attempts=1)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        card = payload["card"]["number"]
        values = {"card": card, "json": f'{{"card": "{card}}}'}
        try:
            ctx.session.execute(text(CUTS[payload["cut"]].replace("{card}", card)), values)
        except DBAPIError as error:
            raise WRAPPED[payload["wrapped"]](error) from None

    bench.sql("CREATE TABLE IF NOT EXISTS cut (card text, x int NOT NULL)")
    ids = [
        bench.create(payload={"card": {"number": LONG}, "cut": cut, "wrapped": wrapped})
        for cut in CUTS
        for wrapped in WRAPPED
    ]
    bench.execute(ids, masked_paths=RULES)
    bench.sql("DROP TABLE cut")

    assert set(bench.states(ids)) == {"FAILED"}
    for task_id in ids:
        (attempt,) = bench.attempts(task_id)
        assert not re.search(r"\d\d\d\d-", f"{attempt.message} {bench.task(task_id).error}")
        assert attempt.message


def test_older_texts_are_shown_without_what_the_database_cut() -> None:
    text = f"Error: no null\nDETAIL:  Failing row contains ({LONG[:40]}..., null)."
    assert Masks(RULES).text("t", text, {"card": {"number": LONG}}) == "Error: no null"
