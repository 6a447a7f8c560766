"""What this process has of ours: a child that executes, a keeper that scans."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from tasks_app.broker.event_pipe import EventPipe
from tasks_app.broker.events import EventWriter
from tasks_app.broker.publisher import CeleryPublisher
from tasks_app.domain.settings import load_settings
from tasks_app.runtime.child import Child
from tasks_app.runtime.database import Database
from tasks_app.runtime.dispatcher import Dispatcher, Scanned
from tasks_app.runtime.hooks import HOOKS
from tasks_app.runtime.maintainer import Maintainer
from tasks_app.runtime.middleware import load_middleware
from tasks_app.runtime.pulse import DB, Pulse
from tasks_app.runtime.registry import HANDLERS
from tasks_app.runtime.rescuer import Rescuer
from tasks_app.runtime.slot_folder import slot_file

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

NODE_VARIABLE, QUEUES_VARIABLE = "TASKS_APP_NODE", "TASKS_APP_QUEUES"
"""How the worker's parent tells its children, forked or spawned, who they are."""

_mutex = threading.Lock()
_children: dict[int, Child] = {}
_keepers: dict[int, Keeper] = {}


class Keeper:
    """Scans, rescues and maintains for one process."""

    def __init__(self, app: Celery) -> None:
        settings = load_settings()
        self.database = Database(settings.database)
        self._dispatcher = Dispatcher(settings, self.database, CeleryPublisher(app))
        self._rescuer = Rescuer(settings, self.database)
        self._maintainer = Maintainer(self.database)
        self._pulse = Pulse(DB, good_for_s=settings.healthy_for.total_seconds())

    def scan(self) -> Scanned:
        """Rescue what is over, then publish what is due."""
        self._rescuer.run_once()
        self._pulse.beat()
        return self._dispatcher.run_once()

    def maintain(self) -> None:
        """Make partitions ahead."""
        self._maintainer.run_once()


def current_child(threads: int = 1) -> Child:
    """Return this process's child, started on first use: then it learns of its threads."""
    with _mutex:
        child = _children.get(os.getpid())
        if child is None:
            queues = os.environ.get(QUEUES_VARIABLE)
            settings, slots = load_settings(), slot_file()
            if settings.events != "off":
                pipe = EventPipe.beside(slots.path)
                HOOKS.subscribe(EventWriter(pipe, lambda: slots.reporting, settings))
            child = Child(
                settings,
                HANDLERS,
                slots,
                queues=queues.split(",") if queues else HANDLERS.queues,
                node=os.environ.get(NODE_VARIABLE),
                middleware=load_middleware(settings.layers),
                threads=threads,
            )
            _children.clear()
            _children[os.getpid()] = child
            child.start()
        return child


def stop_child() -> None:
    """Stop this process's child if it has one."""
    with _mutex:
        child = _children.pop(os.getpid(), None)
    if child is not None:
        child.stop()


def current_keeper(app: Celery) -> Keeper:
    """Return this process's keeper, made on first use."""
    with _mutex:
        if os.getpid() not in _keepers:
            _keepers.clear()
            _keepers[os.getpid()] = Keeper(app)
        return _keepers[os.getpid()]
