"""Work that goes on during a fault, and the spans under which it does."""

from __future__ import annotations

import threading
from typing import Self

from tests.broker.conftest import House
from tests.clock import until

PER_SECOND = 50
SPANS = {"TASKS_APP_LEASE": "30s", "TASKS_APP_GIVE_BACK_AFTER": "1s"}
DONE = "SELECT count(*) FROM task_completed"


class Load:
    """A producer that never stops; it knows nothing of brokers."""

    def __init__(self, house: House) -> None:
        self.ids: list[int] = []
        self._house = house
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self._house.sql(DONE) > PER_SECOND, 60, "work under load")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _produce(self) -> None:
        while not self._over.wait(0.1):
            self.ids += self._house.create("ok", PER_SECOND // 10)

    def goes_on(self, seconds: float) -> None:
        self._over.wait(seconds)
