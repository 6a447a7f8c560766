"""Asks its worker to stop as soon as the parent has written a message to a child."""

from __future__ import annotations

import os
import signal
from typing import Any

from tasks_app.broker.worker_pool import PromptPool

_create_write_handlers = PromptPool._create_write_handlers


def _create(self: Any, hub: Any, **options: Any) -> None:
    _create_write_handlers(self, hub, **options)
    put = self._quick_put

    def put_and_stop(message: Any) -> None:
        put(message)
        job = self._cache[message[1][0]]
        if job._write_to is not None and not job._accepted:
            os.write(1, b"asked to stop: a message is on its way to a child\n")
            os.kill(os.getpid(), signal.SIGTERM)

    self._quick_put = put_and_stop


PromptPool._create_write_handlers = _create  # type: ignore[method-assign]
