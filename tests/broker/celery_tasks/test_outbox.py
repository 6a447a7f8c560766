"""OutboxTask: within an outbox ``.delay()`` is a row of the transaction, outside it is Celery's."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery, chain, group
from celery.result import AsyncResult
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tasks_app import InvalidTaskError, get_task
from tasks_app.broker.outbox import _rule
from tasks_app.celery_tasks import OutboxError, OutboxTask, PoolResult, outbox

sent: list[tuple[Any, ...]] = []


class Recording(Celery):
    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> str:
        sent.append((name, args, kwargs, options.get("countdown")))
        return "sent"


app = Recording("mails", broker="redis://nowhere", set_as_current=False)


@app.task(base=OutboxTask, name="mails.send")
def send(to: str, copy: str | None = None) -> str:
    return to


@app.task(name="mails.plain")
def plain(to: str) -> None: ...


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sent.clear()
    _rule.cache_clear()
    yield
    _rule.cache_clear()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def names(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT name, payload::text FROM task_pending")
        return [f"{row[0]} {row[1]}" for row in found]


def test_a_call_is_a_row_if_and_only_if_the_transaction_commits(
    engine: Engine, session: Session
) -> None:
    with outbox(session):
        result = send.delay("ada", copy="bob")
    before = names(engine)
    session.commit()
    assert before == []
    assert names(engine) == ['mails.send {"args": ["ada"], "kwargs": {"copy": "bob"}}']
    assert get_task(session, result.task_id).name == "mails.send"
    assert result.id == str(result.task_id)
    assert sent == []


def test_a_rollback_takes_the_calls_back(engine: Engine, session: Session) -> None:
    with outbox(session):
        send.delay("ada")
    session.rollback()
    assert (names(engine), sent) == ([], [])


def test_calls_after_the_commit_are_warned_of(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """The habit of plain Celery: commit, then call. Here it would lose the call."""
    with outbox(session):
        send.delay("in time")
        session.commit()
        send.delay("too late")
    said = caplog.text
    caplog.clear()
    with outbox(session):
        session.commit()
        send.delay("committed again")
        session.commit()
    with outbox(session):
        with session.begin_nested():
            """A savepoint is no commit."""
        send.delay("before the commit")
    session.commit()

    assert "1 calls in an outbox came after its commit" in said
    assert caplog.text == ""


def test_a_thread_that_outlives_the_block_is_told(session: Session) -> None:
    with outbox(session):
        context = contextvars.copy_context()
    with pytest.raises(OutboxError, match=r"mails\.send was called after its outbox was closed"):
        context.run(send.delay, "ada")


def test_options_of_apply_async_are_kept(connection: Connection) -> None:
    with outbox(connection):
        result = send.apply_async(
            ("ada",), {"copy": "b"}, countdown=60, expires=3600, priority=2, queue="mail",
            soft_time_limit=3, time_limit=9, retry=False, ignore_result=True,
        )  # fmt: skip
    task = get_task(connection, result.task_id)
    assert (task.queue, task.priority) == ("mail", 2)
    assert (task.due_at - task.created_at).total_seconds() == 60
    assert 3590 < (task.expires_at - task.created_at).total_seconds() < 3610
    limits = "SELECT timeout_ms, hard_timeout_ms FROM task_pending"
    assert connection.exec_driver_sql(limits).one() == (3000, 9000)


def test_an_eta_and_a_signature_go_in_too(connection: Connection) -> None:
    eta = datetime(2031, 1, 1, tzinfo=UTC)
    with outbox(connection):
        late = send.s("ada").apply_async(eta=eta)
        partial = send.s(copy="c").delay("bob")
    assert get_task(connection, late.task_id).due_at == eta
    assert get_task(connection, partial.task_id).payload == {
        "args": ["bob"],
        "kwargs": {"copy": "c"},
    }


def test_other_tasks_are_sent_as_ever(session: Session) -> None:
    with outbox(session):
        answer = plain.delay("ada")
    assert (answer, sent) == ("sent", [("mails.plain", ("ada",), {}, None)])


def test_an_inner_outbox_is_the_one_that_counts(engine: Engine, session: Session) -> None:
    with engine.connect() as other, outbox(other):
        with outbox(session):
            send.delay("inner")
        send.delay("outer")
        session.commit()
    assert sent == []
    assert names(engine) == ['mails.send {"args": ["inner"], "kwargs": {}}']


@pytest.mark.parametrize(
    "call",
    [
        lambda: chain(send.s("a"), send.si("b")).delay(),
        lambda: group(send.s("a"), send.s("b")).delay(),
        lambda: send.apply_async(("a",), link=plain.s()),
    ],
    ids=["chain", "group", "link"],
)
def test_what_a_row_cannot_carry_is_refused(engine: Engine, session: Session, call: Any) -> None:
    with outbox(session), pytest.raises(InvalidTaskError, match=r"options\.\w+ (belongs|is given)"):
        call()
    session.commit()
    assert (names(engine), sent) == ([], [])


def test_wrong_arguments_are_refused_at_the_call(session: Session) -> None:
    with outbox(session), pytest.raises(InvalidTaskError, match=r"missing 1 required .*'to'"):
        send.delay()


def test_outside_it_warns_and_publishes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        answer = send.apply_async(("ada",), countdown=3)
    assert (answer, sent) == ("sent", [("mails.send", ("ada",), None, 3)])
    assert "mails.send was called without an outbox" in caplog.text
    assert "ada" not in caplog.text


def test_outside_it_publishes_silently_or_refuses_by_setting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TASKS_APP_OUTSIDE_OUTBOX", "publish")
    send.delay("ada")
    said = caplog.text
    _rule.cache_clear()
    monkeypatch.setenv("TASKS_APP_OUTSIDE_OUTBOX", "refuse")
    with pytest.raises(OutboxError, match=r"mails\.send was called without an outbox"):
        send.delay("bob")
    assert (len(sent), said) == (1, "")


def test_a_retry_in_a_plain_worker_is_sent_without_a_word(
    monkeypatch: pytest.MonkeyPatch, session: Session
) -> None:
    monkeypatch.setenv("TASKS_APP_OUTSIDE_OUTBOX", "refuse")
    with outbox(session):
        send.apply_async(("ada",), retries=1)
    assert len(sent) == 1


def test_on_our_own_app_it_never_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our queues would refuse the message."""
    from tasks_app.broker.app import PoolCelery

    ours = PoolCelery("ours", broker="redis://nowhere", set_as_current=False)

    @ours.task(base=OutboxTask, name="ours.t", shared=False)
    def task() -> None: ...

    monkeypatch.setenv("TASKS_APP_OUTSIDE_OUTBOX", "publish")
    with pytest.raises(OutboxError):
        task.delay()


def test_eager_apps_stay_eager(session: Session) -> None:
    eager = Celery("eager", set_as_current=False)
    eager.conf.task_always_eager = True

    @eager.task(base=OutboxTask, name="eager.echo", shared=False)
    def echo(word: str) -> str:
        return word

    with outbox(session):
        inside = echo.delay("ada").get()
    assert (inside, echo.delay("bob").get()) == ("ada", "bob")


def test_the_result_is_celerys(connection: Connection) -> None:
    with outbox(connection):
        result = send.delay("ada")
        mine = send.apply_async(("bob",), task_id="mine")
    assert (repr(result), str(mine)) == (f"<PoolResult {result.id}>", "mine")
    assert isinstance(result, AsyncResult)
    again = pickle.loads(pickle.dumps(result))
    assert (type(again), again.id) == (AsyncResult, result.id)


class TestAsync:
    def test_calls_are_written_at_the_end_of_the_block(
        self, engine: Engine, database_url: str
    ) -> None:
        async def shop() -> list[PoolResult]:
            async_engine = create_async_engine(database_url)
            async with AsyncSession(async_engine) as session, session.begin():
                names = ["ada"]
                async with outbox(session):
                    first = send.apply_async((names,), {"copy": "x"})
                    names.append("too late")
                    second = send.delay("bob")
                    with pytest.raises(OutboxError, match="not known yet"):
                        _ = first.id
            await async_engine.dispose()
            return [first, second]

        results = asyncio.run(shop())

        with engine.connect() as connection:
            rows = [get_task(connection, result.task_id).payload for result in results]
        assert rows == [
            {"args": [["ada"]], "kwargs": {"copy": "x"}},
            {"args": ["bob"], "kwargs": {}},
        ]

    def test_a_block_that_raises_writes_nothing_and_mistakes_show_at_the_call(
        self, engine: Engine, database_url: str
    ) -> None:
        async def shop() -> None:
            async_engine = create_async_engine(database_url)
            async with AsyncSession(async_engine) as session:
                with contextlib.suppress(InvalidTaskError):
                    async with outbox(session):
                        send.delay("ada")
                        send.delay({1})
                        pytest.fail("a set is no JSON")
                await session.commit()
            await async_engine.dispose()

        asyncio.run(shop())

        assert names(engine) == []

    def test_each_kind_of_session_has_its_kind_of_block(
        self, session: Session, database_url: str
    ) -> None:
        async def wrong() -> None:
            async with outbox(session):
                """Nothing."""

        with pytest.raises(TypeError, match="async with outbox"):
            asyncio.run(wrong())
        with (
            pytest.raises(TypeError, match="For others: async with"),
            outbox(AsyncSession(create_async_engine(database_url))),
        ):
            """Nothing."""
