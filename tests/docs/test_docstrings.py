"""Each public name that somebody calls has an example, and each example is true."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
from enum import Enum
from typing import Any, is_typeddict

import pytest
from sqlalchemy import Engine

from tasks_app import BatchJob, Task, TasksError, create_task
from tests.docs.docstrings import PUBLIC, world

WITHOUT = {
    "AsyncTaskContext": "the TaskContext of an async handler",
    "ChunkContext": "a step's function is given one: BatchJob shows it",
    "Handler": "@handler makes it",
    "Settings": "a record of settings, made from the environment",
    "TaskId": "a number that create_task returns",
}


def is_a_twin(name: str) -> bool:
    """Whether it does what another does, and is awaited."""
    return name[0] == "a" and name[1:] in PUBLIC


def is_a_record(each: Any) -> bool:
    """Whether its fields are all that there is to it. Errors and outcomes are raised."""
    return inspect.isclass(each) and (
        dataclasses.is_dataclass(each)
        or is_typeddict(each)
        or issubclass(each, Enum | tuple | BaseException)
    )


CALLED = [name for name, each in PUBLIC.items() if not is_a_twin(name) and not is_a_record(each)]
EXAMPLES = {
    name: doctest.DocTestParser().get_doctest(
        inspect.getdoc(PUBLIC[name]) or "", {}, name, None, None
    )
    for name in CALLED
    if name not in WITHOUT
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_true(name: str, engine: Engine) -> None:
    example, said = EXAMPLES[name], []
    assert 1 <= example.docstring.count(">>>") + example.docstring.count("\n...") <= 8
    with world(engine) as names:
        example.globs = names
        doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(
            example, out=said.append
        )

    assert "".join(said) == ""


def test_what_has_none_is_listed_with_a_reason() -> None:
    assert WITHOUT.keys() <= set(CALLED)
    assert all(WITHOUT.values())


def test_who_is_called_and_who_is_not() -> None:
    """Or a list that is empty by mistake would pass."""
    assert {"create_task", "handler", "TaskBuffer", "drain", "TasksTestMixin"} <= set(CALLED)
    assert not {"acreate_task", "Task", "TasksError", "NewTask", "Retry"} & set(CALLED)
    assert is_a_record(Task)
    assert is_a_record(TasksError)
    assert not is_a_record(BatchJob)
    assert not is_a_record(create_task)
