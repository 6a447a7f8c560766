"""Those who watch beside a test: a listener to Celery's events, and when scans were done."""

from __future__ import annotations

import itertools
import threading
from datetime import datetime
from typing import Any, Self

from celery import Celery
from celery.events.state import State
from sqlalchemy import Engine, text

from tasks_app.broker.defaults import celery_defaults


class Listener:
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
        return [e for e in self.events if e.get("uuid") == str(task_id)]

    def types(self, task_id: int) -> list[str]:
        """Their types, without the first word."""
        return [e["type"].removeprefix("task-") for e in self.of(task_id)]

    def task(self, task_id: int) -> Any:
        return self.state.tasks.get(str(task_id))

    def shows(self, task_id: int) -> str | None:
        task = self.task(task_id)
        return None if task is None else task.state

    def workers(self) -> set[str]:
        return {e["hostname"] for e in self.events}

    def end(self) -> None:
        self._ends.set()
        self._receiver.should_stop = True
        self._thread.join(2)


DONE = text("SELECT done_at, statement_timestamp() FROM task_lease WHERE name = 'scan'")


class Scans:
    """Watches beside a test; each scan that it sees is later than the one before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen: list[datetime] = []
        self.now: datetime | None = None

    def longest_gap_s(self) -> float:
        """The longest span without a scan, the one that has not ended yet included."""
        assert self.now is not None
        instants = [*self.seen, self.now]
        gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(instants)]
        return max(gaps, default=0.0)

    def gap_around(self, moment: datetime) -> float:
        """The span between the last scan before that moment and the first one after it."""
        before = max(instant for instant in self.seen if instant <= moment)
        after = min(instant for instant in self.seen if instant > moment)
        return (after - before).total_seconds()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not self._ends.wait(0.02):
                row = connection.execute(DONE).one_or_none()
                if row is not None and row[0] is not None:
                    self.now = row[1]
                    if not self.seen or row[0] > self.seen[-1]:
                        self.seen.append(row[0])
