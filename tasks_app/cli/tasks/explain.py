"""``explain``: why a task does not run, or what became of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.database import settings, transaction
from tasks_app.domain.errors import NO
from tasks_app.domain.explain.explanation import Explanation
from tasks_app.domain.explain.words import distance, exact
from tasks_app.domain.finding import Finding
from tasks_app.runtime.api.tasks import explain_task


@click.command()
@click.argument("task_id", type=int)
@output.as_json
def explain(task_id: int, *, json_: bool) -> None:
    """Say why a task does not run, and what to do.

    Of a task that is over it says what became of it. It changes nothing, and costs next to nothing
    in a pool of any size. Exit 1: there is no such task.
    """
    with transaction() as connection:
        explanation = explain_task(connection, task_id, settings=settings())
    here = tuple(map(output.found_here, explanation.findings))
    explanation = replace(explanation, findings=here)
    if json_:
        output.print_json(explanation)
    else:
        _print(explanation)
    sys.exit(0 if explanation.known else NO)


def _print(explanation: Explanation) -> None:
    first, *others = explanation.findings
    click.echo(_sentence(first))
    click.echo(output.cell(first.advice))
    for other in others:
        click.echo(f"\nAlso: {_sentence(other)}\n{output.cell(other.advice)}")
    if explanation.facts:
        click.echo()
    output.print_fields(
        (name, _shown(value, explanation.at)) for name, value in explanation.facts.items()
    )


def _sentence(finding: Finding) -> str:
    fact = output.cell(finding.fact)
    return fact if fact.endswith((".", "!", "?", "…")) else f"{fact}."


def _shown(value: Any, now: datetime) -> Any:
    return f"{exact(value)}  {distance(value, now)}" if isinstance(value, datetime) else value
