"""What one process of a Celery worker or of beat holds: a child, its standby, a leader."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tasks_app.broker.events import EventPipe, EventWriter
from tasks_app.broker.messages import load_pool_name
from tasks_app.broker.publisher import CeleryPublisher
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.pool.dispatch.leader_lease import Rank
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.middleware import load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.hooks import HOOKS
from tasks_app.runtime.leader.leader import Leader
from tasks_app.runtime.leader.leadership import TTL
from tasks_app.runtime.scoreboard import slot_file
from tasks_app.runtime.tracing.tracing import traced_publisher
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.standby import Standby

if TYPE_CHECKING:
    from celery import Celery

NODE_VARIABLE, QUEUES_VARIABLE = "TASKS_APP_NODE", "TASKS_APP_QUEUES"
"""The worker's parent sets them for its children, forked or spawned."""


class ProcessState:
    """What this process holds. A fork inherits its parent's, and starts with nothing."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._mutex = threading.Lock()
        self._reset()
        self.main_pid: int | None = None
        """The worker's main process, once it has started; forks keep it."""

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._child: Child | None = None
        self._standby: Standby | None = None
        self._leader: Leader | None = None

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._reset()

    def child(self, threads: int = 1) -> Child:
        """Return the child, started on first use with this many main threads."""
        with self._mutex:
            self._reset_after_fork()
            if self._child is None:
                self._child = _new_child(threads)
                self._child.start()
            return self._child

    def start_standby(self) -> None:
        """Let the child lead while no beat lives."""
        settings, child = load_settings(), self.child()
        holder = f"standby {child.identity.owner}"
        leader = _new_leader(self._app, settings, child.database, holder)
        standby = Standby(settings, leader, child)
        with self._mutex:
            self._standby = standby
        standby.start()

    def stop(self) -> None:
        """Stop the standby first, then the child; harmless when there are none."""
        with self._mutex:
            self._reset_after_fork()
            child, self._child = self._child, None
            standby, self._standby = self._standby, None
        if standby is not None:
            standby.stop()
        if child is not None:
            child.stop()

    def scheduled_leader(self) -> Leader:
        """Return the leader for messages of another scheduler.

        All its messages share one token: the scheduler is one holder, in whichever process they
        are executed.
        """
        with self._mutex:
            self._reset_after_fork()
            if self._leader is None:
                settings = load_settings()
                self._leader = _new_leader(
                    self._app,
                    settings,
                    Database(settings.database, prepare=settings.prepare),
                    "schedule",
                    rank=Rank.BEAT,
                    token=UUID(int=0),
                    ttl=max(TTL, 3 * settings.scan_interval),
                )
            return self._leader


def beat_leader(app: Celery) -> Leader:
    settings = load_settings()
    holder = f"beat {socket.gethostname()}:{os.getpid()}"
    database = Database(settings.database, prepare=settings.prepare)
    with database.begin() as connection:
        load_pool_name(connection)
    return _new_leader(app, settings, database, holder, rank=Rank.BEAT)


def _new_child(threads: int) -> Child:
    queues = os.environ.get(QUEUES_VARIABLE)
    settings, slots = load_settings(), slot_file()
    if settings.events != "off":
        pipe = EventPipe.beside(slots.path)
        HOOKS.subscribe(EventWriter(pipe, settings), while_=lambda: slots.reporting)
    return Child(
        settings,
        HANDLERS,
        slots,
        queues=queues.split(",") if queues else HANDLERS.queues,
        node=os.environ.get(NODE_VARIABLE),
        middleware=load_middleware(settings.layers),
        threads=threads,
        extra_threads=settings.threads - 1 if threads == 1 else 0,
    )


def _new_leader(
    app: Celery, settings: Settings, database: Database, holder: str, **options: Any
) -> Leader:
    publisher = traced_publisher(CeleryPublisher(app))
    return Leader(settings, database, publisher, holder, **options)
