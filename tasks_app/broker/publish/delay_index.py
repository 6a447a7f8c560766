"""The delay index: a sorted set in Redis of what becomes due within seconds.

It makes nothing happen that would not happen without it: whoever scans enters what is near, again
and again, and the pump of a worker takes out what is due and hints at it. Lost entries, and a lost
index, are entered by the next scan; what fell out between the two is found by the scan itself.

All times are spans, counted by Redis from when the entry arrives. So no clock needs to agree with
another, and an entry is never early: the way from the database to Redis only adds to its span. Of
several estimates for one task the earliest is the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple
from uuid import uuid4

from celery import Celery

from tasks_app.broker.guard.foreign_messages import own_name
from tasks_app.broker.publish.connection import BrokerConnection
from tasks_app.broker.publish.envelope import Envelope
from tasks_app.domain.config.settings import Settings
from tasks_app.pool.dispatch.upcoming import Upcoming
from tasks_app.runtime.hints.channel import DEEP

KEPT_S = 60
"""Without another entry the index is forgotten after so long; nothing is entered so far ahead."""
LOCK_S = 2.5
"""How long a pump that died keeps others from pumping."""
MOST = 1_000
"""Tasks per move; the next one follows at once."""
MESSAGES = 8
"""Of the tasks of a queue that are due in one moment, so many messages are made at most: enough
for the children of a small worker, and a crowd shares them."""
CROWDED_S = 0.05
"""Between two moves while messages wait: the children are busy, and nobody starts sooner. So what
becomes due meanwhile shares a message, or each would cost them one."""
PATIENCE = {"socket_timeout": 1, "socket_connect_timeout": 1, "max_retries": 0}
"""Beat and the worker's parent have other things to do than to wait for Redis: a second it is."""

_NOW = """
local t = redis.call('TIME')
local now = t[1] * 1000 + t[2] / 1000
"""
_ENTER = f"""{_NOW}
for i = 1, #ARGV, 2 do
    redis.call('ZADD', KEYS[1], 'LT', now + ARGV[i], ARGV[i + 1])
end
redis.call('EXPIRE', KEYS[1], {KEPT_S})
return redis.call('EXISTS', KEYS[2])
"""
# One step: what is rescheduled meanwhile has another score, and stays.
_MOVE = f"""
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return {{-1}} end
redis.call('SET', KEYS[2], ARGV[1], 'PX', {int(LOCK_S * 1000)})
{_NOW}
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, {MOST})
if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
local front = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local wait = front[2] and math.max(0, math.ceil(front[2] - now)) or {KEPT_S * 1000}
return {{wait, unpack(due)}}
"""
_LEAVE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class Moved(NamedTuple):
    """What one move did."""

    pumps: bool
    """False: somebody else does."""
    wait_s: float = 0.0
    """Until the next move is worth it."""
    tasks: int = 0


class DelayIndex:
    """The index as one thread of one process uses it."""

    def __init__(self, app: Celery) -> None:
        self._line = BrokerConnection(app, hasty=True, **PATIENCE)
        pool = own_name()
        self._envelope = Envelope(app, pool)
        self._token = str(uuid4())
        place = f"delay.{pool}" if pool else "delay"
        self._due, self._pump = f"{place}.due", f"{place}.pump"

    def enter(self, tasks: Sequence[Upcoming]) -> bool:
        """Enter what becomes due soon; tell whether somebody pumps.

        Raises:
            Exception: the broker did not answer.
        """
        arguments: list[object] = []
        for task in tasks:
            arguments += [ceil(task.due_in_s * 1000), f"{task.id} {task.queue}"]
        return bool(
            self._line.do(lambda channel: _run(channel, _ENTER, (self._due, self._pump), arguments))
        )

    def move(self) -> Moved:
        """Take out what is due, if nobody else pumps, and publish it.

        A queue that is deep gets nothing, as from hints: the scan fills it in better order.

        Raises:
            Exception: the broker did not answer. What was taken out is found by the scan.
        """
        wait_ms, *members = self._line.do(
            lambda channel: _run(channel, _MOVE, (self._due, self._pump), [self._token])
        )
        if wait_ms < 0:
            return Moved(pumps=False)
        due: dict[str, list[int]] = {}
        for member in members:
            task_id, _, queue = member.decode().partition(" ")
            due.setdefault(queue, []).append(int(task_id))
        depths = [self._line.do(partial(self._hint, queue, ids)) for queue, ids in due.items()]
        soonest_s = CROWDED_S if any(depths) else 0.0
        return Moved(pumps=True, wait_s=max(wait_ms / 1000, soonest_s), tasks=len(members))

    def _hint(self, queue: str, ids: Sequence[int], channel: Any) -> int:
        """Publish, unless the queue is deep; return how many messages waited there."""
        depth = int(channel.client.llen(queue))
        if depth < DEEP:
            size = len(ids) if depth else ceil(len(ids) / MESSAGES)
            for start in range(0, len(ids), size):
                self._envelope.put(channel, queue, None, ids[start : start + size])
        return depth

    def leave(self) -> None:
        """Let somebody else pump at once."""
        try:
            self._line.do(lambda channel: _run(channel, _LEAVE, (self._pump,), [self._token]))
        finally:
            self._line.drop()


def _run(channel: Any, script: str, names: Sequence[str], arguments: Sequence[object]) -> Any:
    """Run a script on keys of ours; kombu puts its prefix before no key of an EVAL."""
    keys = [f"{channel.global_keyprefix}{name}" for name in names]
    return channel.client.execute_command("EVAL", script, len(keys), *keys, *arguments)


def delay_index(app: Celery, settings: Settings) -> DelayIndex | None:
    """Return the index, where the broker is Redis, or speaks like it; nothing is connected yet."""
    if not settings.delay_index:
        return None
    with app.connection_for_write() as connection:
        return DelayIndex(app) if connection.transport.driver_type == "redis" else None
