"""What this process has of ours: a child that executes, its standby, a leader that scans."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING
from uuid import UUID

from tasks_app.broker.events.pipe import EventPipe
from tasks_app.broker.events.writer import EventWriter
from tasks_app.broker.guard.foreign_messages import learn_own_name
from tasks_app.broker.publish.delay_index import delay_index
from tasks_app.broker.publish.publisher import CeleryPublisher
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.dispatch.leader_lease import Rank
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.middleware import load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.hooks import HOOKS
from tasks_app.runtime.leader.leader import Leader
from tasks_app.runtime.leader.leadership import TTL
from tasks_app.runtime.scoreboard.location import slot_file
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.standby import Standby

if TYPE_CHECKING:
    from celery import Celery

log = quiet_logger(__name__)

NODE_VARIABLE, QUEUES_VARIABLE = "TASKS_APP_NODE", "TASKS_APP_QUEUES"
"""How the worker's parent tells its children, forked or spawned, who they are."""
SCHEDULE = UUID(int=0)
"""The token that all messages of other schedulers share."""

_mutex = threading.Lock()
_children: dict[int, Child] = {}
_deputies: dict[int, Standby] = {}
_keepers: dict[int, Leader] = {}


def current_child(threads: int = 1) -> Child:
    """Return this process's child, started on first use: then it learns of its threads."""
    with _mutex:
        child = _children.get(os.getpid())
        if child is None:
            queues = os.environ.get(QUEUES_VARIABLE)
            settings, slots = load_settings(), slot_file()
            if settings.events != "off":
                pipe = EventPipe.beside(slots.path)
                HOOKS.subscribe(EventWriter(pipe, settings), while_=lambda: slots.reporting)
            child = Child(
                settings,
                HANDLERS,
                slots,
                queues=queues.split(",") if queues else HANDLERS.queues,
                node=os.environ.get(NODE_VARIABLE),
                middleware=load_middleware(settings.layers),
                threads=threads,
                extra_threads=settings.threads - 1 if threads == 1 else 0,
            )
            _children.clear()
            _children[os.getpid()] = child
            child.start()
        return child


def appoint_standby(app: Celery) -> None:
    """Let this process's child stand in when no beat lives."""
    settings, child = load_settings(), current_child()
    publisher = CeleryPublisher(app)
    leader = Leader(
        settings,
        child.database,
        publisher,
        f"standby {child.identity.owner}",
        index=delay_index(app, settings),
    )
    standby = Standby(settings, leader, child)
    with _mutex:
        _deputies.clear()
        _deputies[os.getpid()] = standby
    standby.start()


def stop_child() -> None:
    """Stop this process's child, and its standby first, if it has one."""
    with _mutex:
        child = _children.pop(os.getpid(), None)
        standby = _deputies.pop(os.getpid(), None)
    if standby is not None:
        standby.stop()
    if child is not None:
        child.stop()


def scheduled_leader(app: Celery) -> Leader:
    """Return the leader that messages of another scheduler find in this process.

    Wherever they are executed, it is one holder: the scheduler that sends them.
    """
    with _mutex:
        if os.getpid() not in _keepers:
            settings = load_settings()
            _keepers.clear()
            _keepers[os.getpid()] = Leader(
                settings,
                Database(settings.database, prepare=settings.prepare),
                CeleryPublisher(app),
                "schedule",
                rank=Rank.BEAT,
                token=SCHEDULE,
                ttl=max(TTL, 3 * settings.scan_interval),
                index=delay_index(app, settings),
            )
        return _keepers[os.getpid()]


def beat_leader(app: Celery) -> Leader:
    """Return a leader for a beat in this process."""
    settings = load_settings()
    holder = f"beat {socket.gethostname()}:{os.getpid()}"
    database = Database(settings.database, prepare=settings.prepare)
    with database.begin() as connection:
        learn_own_name(connection)
    return Leader(
        settings,
        database,
        CeleryPublisher(app),
        holder,
        rank=Rank.BEAT,
        index=delay_index(app, settings),
    )
