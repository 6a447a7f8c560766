"""How plain handlers are called in a Django project: within ``atomic()`` on Django's connection."""

from __future__ import annotations

import threading
from typing import Any

from django.db import connections
from django.db.utils import Error as DjangoError

from tasks_app.django.atomicity import is_non_atomic
from tasks_app.django.errors import judged
from tasks_app.django.transactions import DjangoTransaction
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.run import Fence
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.transaction import Transaction
from tasks_app.runtime.execution.lanes import SyncLane
from tasks_app.runtime.execution.process_guard import ProcessGuard


class DjangoLane(SyncLane):
    """Of one child; its threads have connections of Django's of their own."""

    def __init__(self, database: Database, guard: ProcessGuard, alias: str = "default") -> None:
        super().__init__(database, guard)
        self._alias = alias
        self._next = threading.local()

    def transaction(self, fence: Fence) -> Transaction:
        made = DjangoTransaction(super().transaction(fence), self._alias)
        self._next.transaction = made
        return made

    def call(self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None) -> Any:
        """Begin, and call the handler."""
        made: DjangoTransaction = vars(self._next).pop("transaction")
        if is_non_atomic(spec.function):
            return super().call(spec, arguments, limit)
        try:
            made.open()
        except DjangoError as error:
            raise judged(error, refused=True) from error
        try:
            return super().call(spec, arguments, limit)
        except DjangoError as error:
            db = connections[self._alias]
            if not (db.errors_occurred or db.connection is None or db.connection.closed):
                raise  # of another database
            if (known := judged(error)) is error:
                raise
            raise known from error
