"""Large values are encrypted before they are put anywhere; export and import take them along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import TaskContext, load_large_values
from tasks_app.domain.encryption import Keyring, read_keys
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.large_values.store import reference_of
from tasks_app.pool.operations.encrypted_values import count
from tasks_app.runtime.encryption.rotation import rotate
from tasks_app.runtime.encryption.values import is_secret
from tasks_app.runtime.transfer import export_tasks, import_tasks
from tests.runtime.bench import Bench
from tests.runtime.encryption.conftest import NEW, OLD
from tests.runtime.large_values.conftest import BIG, Configure, echo, values

SECRET = {"encryption_keys": OLD, "encrypted_tasks": "t"}


def stored(bench: Bench) -> str:
    with bench.engine.connect() as connection:
        return "".join(
            connection.execute(
                text(
                    "SELECT content FROM task_large_value UNION ALL "
                    "SELECT to_jsonb(t)::text FROM task_all t"
                )
            ).scalars()
        )


def test_payload_and_result_are_encrypted_and_then_kept(bench: Bench, configure: Configure) -> None:
    kept = configure(large_values="database", **SECRET)
    echo(bench)
    task_id = bench.create(payload=BIG)
    bench.drain(**kept)

    assert bench.runs == [BIG]
    assert values(bench) == 2
    assert "x" * 20 not in stored(bench)  # base64 may hold three
    task = bench.task(task_id)
    for value in (task.payload, task.result):
        reference = reference_of(value)
        assert reference
        assert reference.encrypted
    with bench.engine.connect() as connection:
        full = load_large_values(connection, task)
    assert (full.payload, full.result) == (BIG, {"echo": BIG})


def test_a_handler_that_takes_no_payload_still_has_an_encrypted_result(
    bench: Bench, configure: Configure
) -> None:
    configure(large_values="database", **SECRET)

    @bench.handler()
    def run(ctx: TaskContext) -> dict[str, Any]:
        return {"card": "canary"}

    task_id = bench.create(payload=BIG)
    # From here on nothing but the reference says that it is encrypted.
    bench.drain(**configure(encryption_keys=OLD, encrypted_tasks=""))

    task = bench.task(task_id)
    assert (task.state, is_secret(task.result)) == ("SUCCEEDED", True)
    assert "canary" not in stored(bench)


def test_rotation_encrypts_them_anew(bench: Bench, configure: Configure) -> None:
    configure(large_values="database", **SECRET)
    task_id = bench.create(payload=BIG)
    done = rotate(bench.engine, Keyring(read_keys(f"{NEW},{OLD}")))

    assert (done.number, done.complete) == (1, True)
    with bench.engine.begin() as connection:
        assert count(connection) == [("task_large_value.content (payload)", "new", 1)]
    configure(large_values="database", encryption_keys=NEW, encrypted_tasks="t")
    with bench.engine.connect() as connection:
        assert load_large_values(connection, bench.task(task_id)).payload == BIG


@pytest.mark.parametrize("secret", [{}, SECRET])
def test_a_move_takes_them_along(
    bench: Bench, configure: Configure, tmp_path: Path, secret: dict[str, str]
) -> None:
    kept = configure(large_values="database", **secret)
    echo(bench)
    bench.create(payload=BIG)
    bench.create(payload={"n": 1})
    export_tasks(bench.engine, tmp_path / "file", name="t")
    bench.sql("DELETE FROM task_pending")  # as if it were another database
    bench.sql("DELETE FROM task_large_value")

    assert import_tasks(bench.engine, tmp_path / "file", tmp_path / "receipt").tasks == 2
    assert values(bench) == 1
    bench.drain(**kept)

    assert len(bench.runs) == 2
    assert BIG in bench.runs


@pytest.mark.parametrize("secret", [{}, SECRET])
def test_where_they_are_not_kept_an_import_is_refused(
    bench: Bench, configure: Configure, tmp_path: Path, secret: dict[str, str]
) -> None:
    configure(large_values="database", **secret)
    bench.create(payload={"text": "x" * 200_000})
    export_tasks(bench.engine, tmp_path / "file", name="t")
    bench.sql("DELETE FROM task_pending")
    configure(large_values="", **secret)

    with pytest.raises(InvalidSelectionError, match=r"Line 1: payload has .* bytes"):
        import_tasks(bench.engine, tmp_path / "file", tmp_path / "receipt")
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


def test_no_text_quotes_a_large_payload_where_paths_are_masked_and_no_line_ever(
    bench: Bench, kept: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    @bench.handler("t", max_attempts=1)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        raise ValueError(f"{payload['card']} is refused")

    masked, plain = (bench.create(payload={**BIG, "card": "canary-4711"}) for _ in range(2))
    bench.execute([masked], masked_paths="card", **kept)
    bench.execute([plain], **kept)

    assert [each.message for each in bench.attempts(masked)] == ["***"]
    assert [each.message for each in bench.attempts(plain)] == ["canary-4711 is refused"]
    assert "canary" not in caplog.text
    assert "ValueError: ***" in caplog.text
