"""The envelope: what a Celery worker expects around the ids, made once for each app.

``send_task`` makes it anew for every message, which costs more than all the rest of a hint. Only
the ids and the name of the message change.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from celery import Celery

from tasks_app.broker.defaults import EXECUTE

PERSISTENT = 2


class Envelope:
    """Messages to the executor, as the app itself would send them."""

    def __init__(self, app: Celery) -> None:
        made = app.amqp.as_task_v2(
            "", EXECUTE, args=(None, []), argsrepr="(ids)", ignore_result=True
        )
        self._headers = made.headers
        self._properties = {**made.properties, "delivery_mode": PERSISTENT}
        _, kwargs, embedded = made.body
        self._rest = json.dumps([kwargs, embedded])[1:]

    def put(
        self, channel: Any, queue: str, dispatch_id: int | None, ids: Sequence[int], **options: Any
    ) -> None:
        """Put one message into a queue; ``options`` are those of the channel's ``basic_publish``.

        Nothing is declared: queues are made by the workers that serve them.
        """
        name = str(uuid4())
        message = channel.prepare_message(
            f"[{json.dumps([dispatch_id, list(ids)])}, {self._rest}",
            content_type="application/json",
            content_encoding="utf-8",
            headers={**self._headers, "id": name, "root_id": name},
            properties={**self._properties, "correlation_id": name, "delivery_info": {}},
        )
        channel.basic_publish(message, exchange="", routing_key=queue, **options)
