"""The envelope: what a Celery worker expects around the ids, made once for each app.

``send_task`` makes it again for every message, which costs more than the rest of a hint. Only the
ids and the name of the message change. In Redis messages are texts in a list, so kombu's part can
be made once as well.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from celery import Celery

from tasks_app.broker.defaults import EXECUTE
from tasks_app.broker.guard.other_pools import HEADER

PERSISTENT = 2
WAKE = 1
"""The scan's messages have it where a hint has None."""
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

        Nothing is declared: queues are made by the workers that serve them.
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
