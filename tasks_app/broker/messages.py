"""Our messages: the envelope, the body, and the header that names the pool."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from celery import Celery
from sqlalchemy import Connection

from tasks_app.broker.defaults import EXECUTE
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.pool.tables import pool_name
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox

log = quiet_logger(__name__)
PERSISTENT = 2
WAKE = 1  # in the scan's messages, where a hint has None
LARGEST_ID, MOST_IDS, LONGEST_NAME = 2**63 - 1, 500, 255
HEADER = "pool"
_NAME, _BODY, _QUEUE = "<the name>", "<the body>", "<the queue>"
"""Placeholders in the text for Redis, which JSON does not escape."""


class Envelope:
    """Messages to the executor, as the app itself would send them, with the name of the pool.

    The name is a header: workers of older versions ignore it, and newer ones take messages without.
    """

    def __init__(self, app: Celery, pool: str | None = None) -> None:
        made = app.amqp.as_task_v2(
            "", EXECUTE, args=(None, []), argsrepr="(ids)", ignore_result=True
        )
        self._headers = {**made.headers, HEADER: pool} if pool else made.headers
        self._properties = {**made.properties, "delivery_mode": PERSISTENT}
        _, kwargs, embedded = made.body
        self._rest = json.dumps([kwargs, embedded])[1:]
        self._text = json.dumps(
            {
                "body": _BODY,
                "content-encoding": "utf-8",
                "content-type": "application/json",
                "headers": {**self._headers, "id": _NAME, "root_id": _NAME},
                "properties": {
                    **self._properties,
                    "correlation_id": _NAME,
                    "delivery_tag": _NAME,
                    "delivery_info": {"exchange": "", "routing_key": _QUEUE},
                    "priority": 0,
                    "body_encoding": "base64",
                },
            }
        )

    def put(
        self, channel: Any, queue: str, wake: int | None, ids: Sequence[int], **options: Any
    ) -> None:
        """Put one message into a queue; ``options`` are those of the channel's ``basic_publish``.

        It declares nothing: the workers that serve a queue create it.
        """
        name = str(uuid4())
        message = channel.prepare_message(
            self._body(wake, ids),
            content_type="application/json",
            content_encoding="utf-8",
            headers={**self._headers, "id": name, "root_id": name},
            properties={**self._properties, "correlation_id": name, "delivery_info": {}},
        )
        channel.basic_publish(message, exchange="", routing_key=queue, **options)

    def text(self, queue: str, wake: int | None, ids: Sequence[int]) -> str:
        """Return the same message as kombu would push it into a list of Redis."""
        body = base64.b64encode(self._body(wake, ids).encode()).decode()
        text = self._text.replace(_BODY, body).replace(_NAME, str(uuid4()))
        return text.replace(_QUEUE, json.dumps(queue)[1:-1])

    def _body(self, wake: int | None, ids: Sequence[int]) -> str:
        return f"[{json.dumps([wake, list(ids)])}, {self._rest}"


def is_ours(task: str, body: Any) -> bool:
    """Say whether a decoded body is one that we publish for this task, without a canvas."""
    match body:
        case [list() as args, dict() as kwargs, dict() as embedded]:
            if kwargs or any(embedded.values()):
                return False
            return not args if task != EXECUTE else len(args) == 2 and are_ids(*args)  # noqa: PLR2004
        case _:
            return False


def are_ids(wake: Any, ids: Any) -> bool:
    """Say whether these are a positive number, or None for a hint, and 1 to 500 ids of tasks."""
    return (
        (wake is None or _is_id(wake))
        and isinstance(ids, list)
        and 1 <= len(ids) <= MOST_IDS
        and all(map(_is_id, ids))
    )


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_ID


def is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()


POOL_VARIABLE = "TASKS_APP_POOL"
"""In it a worker's parent or a beat passes the name to the rest of its process and its children."""


def pool_name_here() -> str | None:
    """Return the name of the pool that this process serves; None: unknown, or the pool has none."""
    return os.environ.get(POOL_VARIABLE) or None


def load_pool_name(connection: Connection) -> None:
    os.environ[POOL_VARIABLE] = pool_name(connection) or ""


class ForeignMessages:
    """Counts the messages of other pools that one worker's parent has refused."""

    def __init__(self) -> None:
        self.number = 0
        self._logged = 0
        self._log_at = 0.0

    def refuses(self, headers: Mapping[str, Any]) -> bool:
        """Say whether the message names another pool; older versions name none."""
        named, own = headers.get(HEADER), pool_name_here()
        if named is None or own is None or named == own:
            return False
        self.number += 1
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + 60.0
            self._report(self.number - self._logged)
            self._logged = self.number
        return True

    def _report(self, number: int) -> None:
        log.warning(
            "refused %s messages of another pool (%s in all): two pools share this broker, and "
            "each waits for what the other's workers take. Give each a database of Redis, a "
            "global_keyprefix or a virtual host of its own.",
            number,
            self.number,
        )
        if SLOTS_VARIABLE in os.environ:  # a child records it for doctor
            slots = Path(os.environ[SLOTS_VARIABLE])
            with suppress(OSError):  # Celery would take it for the loss of the connection
                Mailbox.beside(slots).leave(ControlCommand(Do.COUNT_STRANGERS, ids=(number,)))
