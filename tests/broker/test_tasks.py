"""What a message may hold: our tasks check its body before anything of ours is touched."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from tasks_app.broker.app import register
from tasks_app.broker.defaults import EXECUTE

LARGEST = 2**63 - 1


@pytest.fixture
def carried_out() -> list[Any]:
    """What reached the child."""
    return []


@pytest.fixture
def execute(carried_out: list[Any]) -> Any:
    return registered(lambda ids, *, wake, queue: carried_out.append((wake, queue, ids)))


def registered(execute: Callable[..., None]) -> Any:
    app = Celery("tasks_app.test", set_as_current=False)
    register(app, SimpleNamespace(child=lambda: SimpleNamespace(execute=execute)))
    return app.tasks[EXECUTE]


@pytest.mark.parametrize(
    "body", [(None, [1]), (1, [1, 2]), (LARGEST, [LARGEST]), (7, list(range(1, 501)))]
)
def test_ids_reach_the_child(execute: Any, carried_out: list[Any], body: Any) -> None:
    execute(*body)

    wake, ids = body
    assert carried_out == [(wake is not None, None, ids)]


@pytest.mark.parametrize(
    "body",
    [
        (), (1,), (0, [1]), (-1, [1]), (True, [1]), ("1", [1]), (1.0, [1]), (LARGEST + 1, [1]),
        (None, []), (None, [0]), (None, [-1]), (None, [True]), (None, ["1"]), (None, [1.0]),
        (None, [None]), (None, [[1]]), (None, [LARGEST + 1]), (None, list(range(1, 502))),
        (None, (1, 2)), (None, {"ids": 1}), (None, "12"), (None, [1], 3), (None, [1, "2"]),
    ],
)  # fmt: skip
def test_anything_else_does_not(execute: Any, carried_out: list[Any], body: Any) -> None:
    execute(*body)

    assert carried_out == []


def test_nor_does_a_body_with_more_names(execute: Any, carried_out: list[Any]) -> None:
    execute(wake=None, ids=[1], os="system")

    assert carried_out == []


def test_what_breaks_while_a_message_is_carried_out_is_said_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A MemoryError that reached Celery would end the worker."""

    def break_off(*_: Any, **__: Any) -> None:
        raise MemoryError("secret\npayload")

    registered(break_off)(5, [1])

    assert [record.getMessage() for record in caplog.records] == [
        "a message ended early; the scan finds its tasks again: MemoryError: secret"
    ]
