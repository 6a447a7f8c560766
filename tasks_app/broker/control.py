"""Remote control: Flower's Revoke button, inspect and control commands, and who may use Flower."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from celery import Celery
from celery.signals import import_modules
from celery.worker import state as worker_state
from celery.worker.control import Panel, control_command, inspect_command

from tasks_app.broker.checks import ends_the_process
from tasks_app.broker.defaults import OURS
from tasks_app.domain.config.urls import is_local
from tasks_app.domain.errors import ConfigurationError, InvalidTaskError
from tasks_app.pool.flow_control.queue_settings import checked_queue
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard, SlotView
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox

LARGEST_ID = 2**63 - 1
_RATHER = (
    "is not Celery's to limit. A task is bounded by timeout= and hard_timeout= of its handler or "
    "queue (tasks-app queues), its rate by tasks-app limits."
)
_NO_TASK = (
    "This is a message of tasks_app, which carries many tasks. Name the number of a task, as "
    "tasks-app list shows it."
)


def connect_control() -> None:
    """Let ``revoke`` and ``terminate`` cancel our tasks; Celery gets all other ids.

    Commands that would change our messages are refused: each carries up to 500 tasks.
    ``registered`` lists our handlers, too.
    """
    ways = {"revoke": _cancelling, "terminate": _cancelling}
    ways |= {"time_limit": _for_others, "rate_limit": _for_others}
    ways["registered"] = _with_handlers
    for command, way in ways.items():
        builtin = Panel.data[command]
        if not hasattr(builtin, "celerys_own"):
            Panel.data[command] = way(builtin)
            Panel.data[command].celerys_own = builtin


def _for_others(builtin: Callable[..., Any]) -> Callable[..., Any]:
    def change(state: Any, task_name: Any = None, *values: Any, **arguments: Any) -> Any:
        name = str(task_name)
        if name in OURS or HANDLERS.get(name) is not None:
            return {"error": f"{name} {_RATHER}"}
        return builtin(state, task_name, *values, **arguments)

    return change


def _cancelling(builtin: Callable[..., Any]) -> Callable[..., Any]:
    def cancel(state: Any, task_id: Any = None, **arguments: Any) -> Any:
        given = task_id if isinstance(task_id, list | tuple | set) else [task_id]
        ours = sorted({int(one) for one in given if is_ours(one)})
        others = [one for one in given if not is_ours(one)]
        if any(worker_state.requests[one].name in OURS for one in others if _is_known(one)):
            return {"error": _NO_TASK}
        if ours:
            _leave(ControlCommand(Do.CANCEL, ids=tuple(ours)))
        if others or not ours:
            return builtin(state, task_id=others, **arguments)
        return {"ok": f"tasks {', '.join(map(str, ours))} will be cancelled"}

    return cancel


def _with_handlers(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """List our handlers, too, although none can be called through the broker."""

    def registered(state: Any, taskinfoitems: Any = None, **arguments: Any) -> list[str]:
        theirs: list[str] = builtin(state, taskinfoitems, **arguments)
        return sorted({*theirs, *HANDLERS.names})

    return registered


def _is_known(message_id: Any) -> bool:
    return isinstance(message_id, str) and message_id in worker_state.requests


def is_ours(task_id: Any) -> bool:
    """Say whether this is the id of a row; Celery's own ids are UUIDs."""
    text = str(task_id)
    return text.isascii() and text.isdigit() and 0 < int(text) <= LARGEST_ID


@control_command(args=[("queue", str)], signature="[queue]")
def pool_pause(state: Any, queue: str = EVERY_QUEUE, **_: Any) -> dict[str, str]:  # noqa: ARG001
    """Stop a queue of tasks_app, or all; it lasts until pool_resume."""
    return _change(Do.PAUSE, queue, "paused")


@control_command(args=[("queue", str)], signature="[queue]")
def pool_resume(state: Any, queue: str = EVERY_QUEUE, **_: Any) -> dict[str, str]:  # noqa: ARG001
    """Let a paused queue of tasks_app run again, or all."""
    return _change(Do.RESUME, queue, "resumed")


@inspect_command()
def pool_stats(state: Any, **_: Any) -> dict[str, Any]:  # noqa: ARG001
    """Show what each child of this worker runs, and for how long."""
    slots = Scoreboard(_slots())
    return {
        "stage": slots.stage.name.lower(),
        "events": slots.reporting,
        "children": [_child(view) for view in slots.occupied()],
    }


def _child(view: SlotView) -> dict[str, Any]:
    now = time.monotonic()
    return {
        "pid": view.pid,
        "alive": not view.dead,
        "running": [run.task_id for run in view.running],
        "seconds": round(now - view.since, 1) if view.running else 0,
        "killed_in_seconds": round(view.kill_at - now, 1) if view.kill_at else None,
        "messages": view.messages,
        "housekeeper_silent_seconds": round(now - view.beat, 1),
    }


def _change(do: Do, queue: str, word: str) -> dict[str, str]:
    try:
        _leave(ControlCommand(do, queue=checked_queue(queue), reason="by remote control"))
    except InvalidTaskError as error:
        return {"error": str(error)}
    return {"ok": f"{'every queue' if queue == EVERY_QUEUE else queue} will be {word}"}


def _leave(command: ControlCommand) -> None:
    Mailbox.beside(_slots()).leave(command)


def _slots() -> Path:
    return Path(os.environ[SLOTS_VARIABLE])


HERE = "127.0.0.1"
COMMANDS = ("flower", "dashboard")
"""Celery's commands that start Flower."""


def guard_flower(app: Celery) -> None:
    """Check Flower's options before it listens; it imports the app's modules first of all."""

    @import_modules.connect(sender=app, weak=False)
    @ends_the_process
    def look(**_: Any) -> None:
        """Do nothing in a worker or beat, which import the modules, too."""
        context = click.get_current_context(silent=True)
        if context is not None and context.info_name in COMMANDS:
            from tornado.options import options  # noqa: PLC0415  it comes with Flower

            check_address(options)


def check_address(options: Any) -> None:
    """Pass if there is a password, or a local address; without an address, set 127.0.0.1.

    Raises:
        ConfigurationError: anybody could shut workers down.
    """
    if options.basic_auth or options.auth or options.auth_provider or options.unix_socket:
        return
    if not options.address:
        options.address = HERE
    if not is_local(options.address):
        raise ConfigurationError(
            f"Flower has no password, and {options.address} is an address that others can reach. "
            "Set FLOWER_BASIC_AUTH=name:password, or FLOWER_ADDRESS=127.0.0.1."
        )
