"""Calls of our functions in the documents: each option that they give is one of the function's."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tasks_app
from tasks_app import testing
from tasks_app.domain.queues import QueueOptions
from tasks_app.domain.schedules.timing import When
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.runtime.handlers.options import HandlerOptions
from tasks_app.runtime.schedules.declared import ScheduleOptions
from tasks_app.testing.creation import Where
from tasks_app.testing.handler_call import ContextOptions
from tests.cases import in_one_test
from tests.docs.reading import DOCUMENTS, blocks
from tests.docs.test_blocks import parsed

PUBLIC = {
    name: getattr(room, name)
    for room in (testing, tasks_app)
    for name in room.__all__
    if callable(getattr(room, name))
}
OPTIONS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        ContextOptions,
        HandlerOptions,
        QueueOptions,
        ScheduleOptions,
        TaskOptions,
        When,
        Where,
    )
}
ANY = {"NewTask": TaskOptions, "foresee_bulk": None, "start_bulk": None}
"""Their options are read by the function: those of a task, and what narrows down a bulk."""


def options(name: str) -> set[str] | None:
    """By keyword; None where any is taken."""
    known: set[str] = set()
    for parameter in inspect.signature(PUBLIC[name]).parameters.values():
        known.add(parameter.name)
        if parameter.kind is parameter.VAR_KEYWORD:
            kind = ANY[name] if name in ANY else _options(str(parameter.annotation))
            if kind is None:
                return None
            known |= set(kind.__annotations__)
    return known


def _options(annotation: str) -> Any:
    found = re.fullmatch(r"Unpack\[(\w+)\]", annotation)
    assert found, annotation
    return OPTIONS[found[1]]


def misspelt(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            known = options(node.func.id) if node.func.id in PUBLIC else None
            given = [word.arg for word in node.keywords if word.arg]
            yield from (
                f"{node.func.id}({each}=…)" for each in given if known and each not in known
            )


@in_one_test("document", DOCUMENTS)
def test_calls_give_options_that_are_there(document: Path) -> None:
    trees = [parsed(block) for block in blocks(document.read_text(), "python")]

    assert [each for tree in trees for each in misspelt(tree)] == []


def test_a_misspelt_option_would_be_seen() -> None:
    code = 'create_task(session, "a", delay="1s", dealy="1s")\n@handler(retries=3)\ndef f(): ...'

    assert list(misspelt(ast.parse(code))) == ["create_task(dealy=…)", "handler(retries=…)"]
