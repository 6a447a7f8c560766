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

from tasks_app.broker.checks import exit_on_error
from tasks_app.broker.defaults import OURS
from tasks_app.broker.messages import LARGEST_ID
from tasks_app.domain.config.urls import is_local
from tasks_app.domain.errors import ConfigurationError, InvalidTaskError
from tasks_app.pool.flow_control.queue_settings import checked_queue
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard, SlotView
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox

GRACE_S = 5.0
"""How long a run has to end after a ``terminate`` with another signal than SIGKILL."""
_KILL = {"KILL", "9"}


def connect_control() -> None:
    """Let ``revoke`` and ``terminate`` cancel our tasks; Celery gets all other ids.

    Limits of our messages are refused, because each message carries up to 500 tasks.
    ``registered`` lists our handlers, too.
    """
    wrappers = {"revoke": _revoking, "terminate": _terminating, "registered": _with_handlers}
    wrappers |= {"time_limit": _for_others, "rate_limit": _for_others}
    for command, wrapper in wrappers.items():
        builtin = Panel.data[command]
        if not hasattr(builtin, "celerys_own"):
            Panel.data[command] = wrapper(builtin)
            Panel.data[command].celerys_own = builtin


def _revoking(builtin: Callable[..., Any]) -> Callable[..., Any]:
    def revoke(
        state: Any,
        task_id: Any = None,
        terminate: Any = False,  # noqa: FBT002  Celery's
        signal: Any = None,
        **arguments: Any,
    ) -> Any:
        given = task_id if isinstance(task_id, list | tuple | set) else [task_id]
        ours = sorted({int(one) for one in given if is_row_id(one)})
        others = [one for one in given if not is_row_id(one)]
        known = [one for one in others if isinstance(one, str) and one in worker_state.requests]
        if any(worker_state.requests[one].name in OURS for one in known):
            return {
                "error": "This is a message of tasks_app, which carries many tasks. "
                "Give the number of a task, as tasks-app list shows it."
            }
        told = _cancel(tuple(ours), terminate, signal) if ours else ""
        if others or not ours:
            return builtin(state, others, terminate, signal, **arguments)
        return {"ok": told}

    return revoke


def _cancel(ids: tuple[int, ...], terminate: Any, signal: Any) -> str:
    """Send the command, and return the answer. The state of the tasks is not known here."""
    named = ", ".join(map(str, ids))
    if not terminate:
        _send(ControlCommand(Do.REVOKE, ids))
        return f"tasks {named} will be cancelled if they wait; terminate ends those that run, too"
    grace_s = 0.0 if str(signal).upper().removeprefix("SIG") in _KILL else GRACE_S
    _send(ControlCommand(Do.CANCEL, ids, kill_after_s=grace_s))
    kill = f"killed after {grace_s:g} s" if grace_s else "killed"
    return f"tasks {named} will be cancelled; if they run, interrupted and {kill}"


def _terminating(_builtin: Callable[..., Any]) -> Callable[..., Any]:
    def terminate(state: Any, signal: Any = None, task_id: Any = None, **arguments: Any) -> Any:
        """Do what Celery's does, which knows no other ``revoke`` than its own."""
        return Panel.data["revoke"](state, task_id, terminate=True, signal=signal, **arguments)

    return terminate


def is_row_id(task_id: Any) -> bool:
    """Say whether this is the id of a row; Celery's own ids are UUIDs."""
    text = str(task_id)
    return text.isascii() and text.isdigit() and 0 < int(text) <= LARGEST_ID


def _for_others(builtin: Callable[..., Any]) -> Callable[..., Any]:
    def change(state: Any, task_name: Any = None, *values: Any, **arguments: Any) -> Any:
        name = str(task_name)
        if name in OURS or HANDLERS.get(name) is not None:
            return {
                "error": f"{name} is not Celery's to limit. Set timeout= and hard_timeout= of its "
                "handler or queue (tasks-app queues), and its rate with tasks-app limits."
            }
        return builtin(state, task_name, *values, **arguments)

    return change


def _with_handlers(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """List our handlers, too, although the broker can call none of them."""

    def registered(state: Any, taskinfoitems: Any = None, **arguments: Any) -> list[str]:
        return sorted({*builtin(state, taskinfoitems, **arguments), *HANDLERS.names})

    return registered


@control_command(args=[("queue", str)], signature="[queue]")
def pool_pause(state: Any, queue: str = EVERY_QUEUE, **_: Any) -> dict[str, str]:  # noqa: ARG001
    """Stop a queue of tasks_app, or all; it lasts until pool_resume."""
    return _change(Do.PAUSE, queue, "paused")


@control_command(args=[("queue", str)], signature="[queue]")
def pool_resume(state: Any, queue: str = EVERY_QUEUE, **_: Any) -> dict[str, str]:  # noqa: ARG001
    """Let a paused queue of tasks_app run again, or all."""
    return _change(Do.RESUME, queue, "resumed")


def _change(do: Do, queue: str, word: str) -> dict[str, str]:
    try:
        _send(ControlCommand(do, queue=checked_queue(queue), reason="by remote control"))
    except InvalidTaskError as error:
        return {"error": str(error)}
    return {"ok": f"{'every queue' if queue == EVERY_QUEUE else queue} will be {word}"}


def _send(command: ControlCommand) -> None:
    Mailbox.beside(Path(os.environ[SLOTS_VARIABLE])).leave(command)


@inspect_command()
def pool_stats(state: Any, **_: Any) -> dict[str, Any]:  # noqa: ARG001
    """Show what each child of this worker runs, and for how long."""
    slots = Scoreboard(Path(os.environ[SLOTS_VARIABLE]))
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


def guard_flower(app: Celery) -> None:
    """Check Flower's options before it listens: first of all it imports the app's modules."""

    @import_modules.connect(sender=app, weak=False)
    @exit_on_error
    def check(**_: Any) -> None:
        context = click.get_current_context(silent=True)
        if context is not None and context.info_name in ("flower", "dashboard"):
            from tornado.options import options  # noqa: PLC0415  it comes with Flower

            check_address(options)


def check_address(options: Any) -> None:
    """Pass if there is a password or a local address; without an address, set 127.0.0.1.

    Raises:
        ConfigurationError: everybody on the network could shut workers down.
    """
    if options.basic_auth or options.auth or options.auth_provider or options.unix_socket:
        return
    if not options.address:
        options.address = "127.0.0.1"
    if not is_local(options.address):
        raise ConfigurationError(
            f"Flower has no password, and {options.address} is an address that others can reach. "
            "Set FLOWER_BASIC_AUTH=name:password, or FLOWER_ADDRESS=127.0.0.1."
        )
