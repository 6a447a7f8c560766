"""Texts of errors that were stored before a masking rule, as lists of many tasks show them.

A worker masks what it stores. Of what was there before, the payloads are read along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Connection

from tasks_app.domain.explain.facts import TaskFacts
from tasks_app.pool.tasks.browse import payloads
from tasks_app.runtime.encryption.values import masks

Row = TypeVar("Row")


def masked_texts(connection: Connection, texts: Mapping[int, str]) -> dict[int, str]:
    """Return texts, by the ids of their tasks, without what rules mask in these tasks' payloads."""
    rules, found = masks(), dict(texts)
    if rules and found:
        for task_id, name, payload in payloads(connection, list(found)):
            found[task_id] = rules.text(name, found[task_id], payload)
    return found


def masked_errors(connection: Connection, rows: Iterable[Row], by: str = "id") -> list[Row]:
    """Return dataclasses with their ``error`` masked; ``by`` is their field with the task's id."""
    some: list[Any] = list(rows)
    texts = masked_texts(connection, {getattr(r, by): r.error for r in some if r.error})
    return [replace(r, error=texts[getattr(r, by)]) if r.error else r for r in some]


def masked_facts(connection: Connection, facts: TaskFacts) -> TaskFacts:
    """Return what is known of a task with the texts of its errors masked."""
    row, last = facts.row, facts.last
    if row is None:
        return facts
    if last is not None:
        message = masked_texts(connection, {row.id: last.message})[row.id]
        last = replace(last, message=message)
    return replace(facts, row=masked_errors(connection, [row])[0], last=last)
