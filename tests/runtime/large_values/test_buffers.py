"""Large payloads that are written later: by a TaskBuffer, by an outbox at its commit."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from sqlalchemy import event
from sqlalchemy.orm import Session

from tasks_app import InvalidTaskError, TaskBuffer
from tasks_app.celery_tasks import OutboxTask, outbox
from tasks_app.domain.large_values.store import reference_of
from tests.runtime.bench import Bench
from tests.runtime.large_values.conftest import BIG, Configure, echo, values


def test_a_buffer_writes_each_with_its_task(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    with TaskBuffer(bench.engine, every="1h") as buffer:
        for n in range(3):
            buffer.create_task("t", {**BIG, "n": n})
        buffer.create_task("t", {"n": 3})
        assert buffer.flush("20s")
        assert values(bench) == 3

    bench.drain(**kept)

    assert [payload["n"] for payload in bench.runs] == [0, 1, 2, 3]
    assert bench.runs[0] == {**BIG, "n": 0}


def test_a_taken_key_leaves_nothing(bench: Bench, kept: dict[str, Any]) -> None:
    with TaskBuffer(bench.engine, every="1h") as buffer:
        for _ in range(2):
            buffer.create_task("t", BIG, unique_key="k")
    assert values(bench) == 1


def test_a_batch_that_is_tried_again_is_written_once(
    bench: Bench, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskBuffer, "_pause_s", lambda _: 0.05)
    failures = iter([ConnectionError("before the commit")])

    def refuse(_: Any) -> None:
        for failure in failures:
            raise failure

    event.listen(bench.engine, "commit", refuse)
    try:
        with TaskBuffer(bench.engine, every="1h") as buffer:
            buffer.create_task("t", BIG)
            assert buffer.flush("20s")
            assert buffer.counts().written == 1
    finally:
        event.remove(bench.engine, "commit", refuse)

    assert bench.sql("SELECT count(*) FROM task_pending") == 1
    assert values(bench) == 1


def test_without_the_setting_a_buffer_refuses_it_at_once(bench: Bench) -> None:
    with (
        TaskBuffer(bench.engine) as buffer,
        pytest.raises(InvalidTaskError, match="at most 65536 bytes"),
    ):
        buffer.create_task("t", BIG)


def test_more_than_the_large_limit_is_refused_at_once(bench: Bench, configure: Configure) -> None:
    configure(large_values="database", large_limit=100_000)
    with (
        TaskBuffer(bench.engine) as buffer,
        pytest.raises(InvalidTaskError, match="at most 100000 bytes"),
    ):
        buffer.create_task("t", BIG)


def test_a_call_in_an_outbox_commits_with_its_value(bench: Bench, kept: dict[str, Any]) -> None:
    app = Celery("mails", broker="redis://nowhere", set_as_current=False)

    @app.task(base=OutboxTask, name="t")
    def send(text: str) -> None: ...

    with Session(bench.engine) as session:
        with outbox(session):
            send.delay(BIG["text"])
        session.rollback()
        assert values(bench) == 0
        with outbox(session):
            result = send.delay(BIG["text"])
        session.commit()
    task_id = int(result.id)

    assert reference_of(bench.task(task_id).payload)
    assert values(bench) == 1
    echo(bench)
    bench.drain(**kept)
    assert bench.runs == [{"args": [BIG["text"]], "kwargs": {}}]
