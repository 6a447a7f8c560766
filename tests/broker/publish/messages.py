"""A message to publish."""

from __future__ import annotations

from tasks_app.runtime.hint_sender import Message


def message(number: int, queue: str = "counted", ids: tuple[int, ...] = ()) -> Message:
    return Message(queue, ids or (number,))
