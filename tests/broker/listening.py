"""A listener to Celery's events, as Flower is one."""

from __future__ import annotations

import threading
from typing import Any

from celery import Celery
from celery.events.state import State

from tasks_app.broker.defaults import celery_defaults


class Listener:
    """Collects what is sent from its start on."""

    def __init__(self, broker_url: str) -> None:
        self.app = Celery("listener", set_as_current=False)
        self.app.conf.update(celery_defaults(broker_url, 1.0))
        self.state = State(max_tasks_in_memory=100_000)
        self.events: list[dict[str, Any]] = []
        self._ends = threading.Event()
        self._receiver: Any = None
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._ends.is_set():
            try:
                with self.app.connection_for_read() as connection:
                    self._receiver = self.app.events.Receiver(
                        connection, handlers={"*": self._on_event}
                    )
                    self._receiver.capture(limit=None, timeout=None, wakeup=False)
            except Exception:  # the broker is away
                self._ends.wait(0.1)

    def _on_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.state.event(dict(event))

    def of(self, task_id: int) -> list[dict[str, Any]]:
        """The events of one task."""
        return [e for e in self.events if e.get("uuid") == str(task_id)]

    def types(self, task_id: int) -> list[str]:
        """Their types, without the first word."""
        return [e["type"].removeprefix("task-") for e in self.of(task_id)]

    def task(self, task_id: int) -> Any:
        """What Flower would show of it."""
        return self.state.tasks.get(str(task_id))

    def shows(self, task_id: int) -> str | None:
        """The state that Flower would show."""
        task = self.task(task_id)
        return None if task is None else task.state

    def workers(self) -> set[str]:
        """The names of workers that it heard of."""
        return {e["hostname"] for e in self.events}

    def end(self) -> None:
        """Hear nothing more."""
        self._ends.set()
        self._receiver.should_stop = True
        self._thread.join(2)
