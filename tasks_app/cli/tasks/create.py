"""``create``: one task from the shell."""

from __future__ import annotations

from typing import Any

import click

from tasks_app.cli import output
from tasks_app.cli.arguments import json_value, moment
from tasks_app.cli.database import settings, transaction
from tasks_app.cli.handler_names import hint_at_name
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.unique_key import POLICIES, SCOPES, CreateOutcome
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.handlers.registry import HANDLERS, load_handlers


@click.command()
@click.argument("name")
@click.argument("payload", default="{}")
@click.option("--queue", help="Default: the handler's queue where it is known.")
@click.option("--priority", type=int, help="0 is first, 9 last.")
@click.option("--delay", help="Run after this long: 30s, 10m, 6h.")
@click.option("--run-at", help="Run then, ISO 8601 with a zone: 2030-01-31T09:00:00+01:00.")
@click.option("--biz-key", help="The business object: order:42.")
@click.option("--fair-key", help="Whose share of a fair queue it takes: tenant:7.")
@click.option("--order-key", help="Tasks of one key run one at a time, the oldest first.")
@click.option(
    "--limit-key", multiple=True, help="Limits of keys count by it: tenant:7. Repeatable."
)
@click.option("--unique-key", help="At most one pending or running task of this name has it.")
@click.option("--unique-scope", help=f"For how long: {SCOPES}.")
@click.option("--on-conflict", help=f"When the key is taken: {POLICIES}.")
@click.option("--max-attempts", type=int, help="After so many failures it is FAILED.")
@click.option("--retry", help="Waits between attempts: 5s,30s,1m.")
@output.as_json
def create(name: str, payload: str, run_at: str | None, *, json_: bool, **given: Any) -> None:
    """Create one task. PAYLOAD is JSON, usually an object."""
    options: dict[str, Any] = {
        key: value for key, value in given.items() if value not in (None, ())
    }
    if run_at is not None:
        options["run_at"] = moment(run_at, "--run-at")
    load_handlers(settings().modules)
    assumed = "default" if name not in HANDLERS.specs and "queue" not in options else ""
    if assumed:
        options["queue"] = assumed
    with transaction() as connection:
        task_id = create_task(connection, name, json_value(payload), **TaskOptions(**options))  # type: ignore[typeddict-item]
    hint_at_name(name, "cancel this task", queue=assumed)
    made = {"id": int(task_id), "outcome": task_id.outcome}
    output.answer(f"{task_id}{_NOTES[task_id.outcome]}", made, json_=json_)


_NOTES = {
    CreateOutcome.CREATED: "",
    CreateOutcome.EXISTING: "  (exists already: its unique_key is taken)",
    CreateOutcome.REPLACED: "  (exists already: it has this payload now)",
    CreateOutcome.RESCHEDULED: "  (exists already: it is due at this time now)",
}
