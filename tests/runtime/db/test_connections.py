"""Every kind of session and connection, and what stands for one, with every verb for one task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tasks_app import (
    InvalidTaskError,
    NewTask,
    acancel_task,
    acreate_group,
    acreate_task,
    acreate_tasks,
    aexplain_task,
    aget_task,
    arequeue_task,
    cancel_group,
    cancel_task,
    create_group,
    create_task,
    create_tasks,
    explain_task,
    get_group,
    get_task,
    requeue_task,
    unblock_task,
)
from tests.runtime.bench import Bench
from tests.runtime.db.callers import ASYNC_KINDS, async_session, plain_url
from tests.runtime.hints.ear import Ear, told


@contextmanager
def session(bench: Bench) -> Iterator[Any]:
    with Session(bench.engine) as made, made.begin():
        yield made


@contextmanager
def connection(bench: Bench) -> Iterator[Any]:
    with bench.engine.begin() as made:
        yield made


@contextmanager
def scoped(bench: Bench) -> Iterator[Any]:
    """As Flask-SQLAlchemy's ``db.session``."""
    registry = scoped_session(sessionmaker(bench.engine))
    yield registry
    registry.commit()
    registry.remove()


@contextmanager
def raw(bench: Bench) -> Iterator[Any]:
    with psycopg.connect(plain_url(bench)) as made:
        yield made


@contextmanager
def odd_raw(bench: Bench) -> Iterator[Any]:
    """Whose owner reads rows and types otherwise, as Django does, in odd styles."""
    styles = "-c intervalstyle=iso_8601 -c datestyle=SQL,DMY -c timezone=Asia/Kolkata"
    with psycopg.connect(plain_url(bench), row_factory=dict_row, options=styles) as made:
        for kind in ("jsonb", "timestamptz", "int8", "bool", "interval", "text"):
            made.adapters.register_loader(kind, TextLoader)
        set_json_loads(lambda _: 1 / 0, made)
        yield made


@contextmanager
def autocommit(bench: Bench) -> Iterator[Any]:
    with psycopg.connect(plain_url(bench), autocommit=True) as made:
        yield made


@contextmanager
def pipeline(bench: Bench) -> Iterator[Any]:
    with psycopg.connect(plain_url(bench)) as made, made.pipeline():
        yield made


KINDS = [session, connection, scoped, raw, odd_raw, autocommit, pipeline]


@pytest.mark.parametrize("kind", KINDS)
def test_each_verb_takes_what_create_task_takes(bench: Bench, kind: Callable[[Bench], Any]) -> None:
    with kind(bench) as caller:
        task_id = create_task(caller, "t", {"n": [1]}, biz_key="order:1", unique_key="k")
        found = get_task(caller, task_id)
        answers = [
            get_task(caller, 2**62),
            explain_task(caller, task_id).known,
            cancel_task(caller, task_id, by="ann"),
            explain_task(caller, task_id).known,
            requeue_task(caller, task_id),
            requeue_task(caller, task_id),
            cancel_task(caller, 2**62),
        ]

    assert answers == [
        *(None, True, "cancelled", True),
        *("requeued", "still pending", "not found"),
    ]
    assert found is not None
    assert (found.payload, found.biz_key, found.due_at.utcoffset() is not None) == (
        {"n": [1]},
        "order:1",
        True,
    )
    assert bench.sql("SELECT array_agg(action ORDER BY id) FROM task_audit") == [
        "cancel",
        "requeue",
    ]
    assert bench.state(task_id) == "PENDING"


@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_each_verb_has_a_twin_for_async_callers(
    bench: Bench, kind: Callable[[Bench], AbstractAsyncContextManager[Any]]
) -> None:
    async def act() -> list[Any]:
        async with kind(bench) as caller:
            task_id = await acreate_task(caller, "t", {"n": [1]})
            found = await aget_task(caller, task_id)
            assert found is not None
            return [
                found.payload,
                (await aexplain_task(caller, task_id)).known,
                await acancel_task(caller, task_id),
                await acancel_task(caller, task_id),
                await arequeue_task(caller, task_id),
                await acancel_task(caller, 2**62),
            ]

    assert asyncio.run(act()) == [
        *({"n": [1]}, True, "cancelled", "already over", "requeued", "not found"),
    ]
    assert bench.sql("SELECT count(*) FROM task_pending") == 1
    assert bench.sql("SELECT count(*) FROM task_audit") == 2


def test_what_a_transaction_of_psycopg_rolls_back_did_not_happen(bench: Bench) -> None:
    task_id = bench.create()
    with psycopg.connect(plain_url(bench)) as caller:
        cancel_task(caller, task_id)
        caller.rollback()

    assert bench.state(task_id) == "PENDING"
    assert bench.sql("SELECT count(*) FROM task_audit") == 0


def test_with_autocommit_a_verb_is_one_transaction(bench: Bench) -> None:
    """A requeue, say, inserts and deletes, and writes a line into the audit."""
    task_id = bench.create()
    with autocommit(bench) as caller:
        cancel_task(caller, task_id)
        bench.sql("ALTER TABLE task_audit ADD CONSTRAINT no CHECK (action <> 'requeue')")
        try:
            with pytest.raises(psycopg.errors.CheckViolation):
                requeue_task(caller, task_id)
        finally:
            bench.sql("ALTER TABLE task_audit DROP CONSTRAINT no")

    assert bench.state(task_id) == "CANCELLED"


def test_a_scoped_session_hints_when_it_commits(bench: Bench, ear: Ear) -> None:
    with scoped(bench) as caller:
        task_id = create_task(caller, "t")
        group = create_group(caller, [NewTask("t")])
        assert told(ear) == []

    assert sorted(told(ear)) == [task_id, *group.task_ids]


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: get_task(s, "x"), "task_id is 'x'. Allowed: the integer that its creation"),
    (lambda s: get_task(s, 2**63), "task_id is 9223372036854775808. Allowed"),
    (lambda s: get_task(s, True), "task_id is True. Allowed"),
    (lambda s: explain_task(s, None), "task_id is of type NoneType. Allowed"),
    (lambda s: cancel_task(s, 1.5), "task_id is 1.5. Allowed"),
    (lambda s: requeue_task(s, "1"), "task_id is '1'. Allowed"),
    (lambda s: unblock_task(s, "1"), "task_id is '1'. Allowed"),
    (lambda s: get_group(s, "1"), "group_id is '1'. Allowed"),
    (lambda s: cancel_group(s, "1"), "group_id is '1'. Allowed"),
    (lambda s: create_tasks(s, NewTask("t")), "tasks is of type NewTask. Allowed: a list of NewTa"),
    (lambda s: create_tasks(s, [NewTask("t"), ("t", {})]), "tasks[1] is of type tuple. Allowed: a"),
    (lambda s: create_tasks(s, ["t"]), "tasks[0] is of type str. Allowed: a list of NewTask"),
    (lambda s: create_tasks(s, "t"), "tasks[0] is of type str. Allowed: a list of NewTask"),
    (lambda s: create_tasks(s, (NewTask("t") for _ in "a")), "tasks is of type generator. Allowed"),
    (lambda s: create_tasks(s, None), "tasks is of type NoneType. Allowed: a list of NewTask"),
    (lambda s: create_group(s, NewTask("t")), "tasks is of type NewTask. Allowed: a list of New"),
    (lambda s: create_group(s, [("t",)]), "tasks[0] is of type tuple. Allowed: a list of NewTask"),
    (lambda s: create_group(s, [NewTask("t")], then="t"), "then is of type str. Allowed: a NewT"),
    (lambda s: create_task(s, print), "task is a function that is no handler. Allowed: a task"),
    (lambda s: create_task(s, "t", 5), "payload is of type int. Allowed: a dict with string keys"),
]


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_wrong_arguments_are_refused_and_the_transaction_lives_on(
    bench: Bench, call: Callable[[Any], Any], said: str
) -> None:
    with session(bench) as caller:
        create_task(caller, "before")
        with pytest.raises(InvalidTaskError) as refused:
            call(caller)
        create_task(caller, "behind")

    assert str(refused.value).startswith(said)
    assert bench.sql("SELECT array_agg(name ORDER BY id) FROM task_pending") == ["before", "behind"]


ASYNC_WRONG: list[tuple[Callable[[Any], Awaitable[Any]], str]] = [
    (lambda s: aget_task(s, "x"), "task_id is 'x'"),
    (lambda s: aexplain_task(s, "x"), "task_id is 'x'"),
    (lambda s: acancel_task(s, "x"), "task_id is 'x'"),
    (lambda s: arequeue_task(s, "x"), "task_id is 'x'"),
    (lambda s: acreate_tasks(s, NewTask("t")), "tasks is of type NewTask"),
    (lambda s: acreate_group(s, NewTask("t")), "tasks is of type NewTask"),
]


@pytest.mark.parametrize(("call", "said"), ASYNC_WRONG, ids=range(6))
def test_so_are_those_of_async_calls(
    bench: Bench, call: Callable[[Any], Awaitable[Any]], said: str
) -> None:
    async def act() -> None:
        async with async_session(bench) as caller:
            with pytest.raises(InvalidTaskError, match=said):
                await call(caller)
            await acreate_task(caller, "behind")

    asyncio.run(act())
    assert bench.sql("SELECT count(*) FROM task_pending") == 1


def test_who_passes_another_kind_is_told_which_are_taken(bench: Bench) -> None:
    with pytest.raises(TypeError, match=r"An Engine isn't a Session.*acreate_task, aget_task"):
        get_task(bench.engine, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"A Session isn't an AsyncSession.*create_task, get_task"):
        asyncio.run(aget_task(Session(bench.engine), 1))  # type: ignore[arg-type]
    engine = create_engine(bench.url)
    with engine.connect() as caller, pytest.raises(TypeError, match="async session"):
        asyncio.run(acancel_task(caller, 1))  # type: ignore[arg-type]
    engine.dispose()
