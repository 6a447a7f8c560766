"""The delay index: a sorted set in Redis of the tasks that become due within seconds.

It only makes them start sooner. Each scan enters the tasks that are nearly due, and the pump of a
worker takes the due ones out and publishes hints for them. The next scan restores lost entries, or
a lost index; a task that was taken out and not published is found by the scan itself.

All times are spans, counted by Redis from the arrival of the entry. So no two clocks need to agree,
and no entry is early: the way from the database to Redis only adds to its span. Of several
estimates for one task the earliest is the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple
from uuid import uuid4

from celery import Celery

from tasks_app.broker.guard.other_pools import own_name
from tasks_app.broker.publish.connection import BrokerConnection
from tasks_app.broker.publish.envelope import Envelope
from tasks_app.domain.config.settings import Settings
from tasks_app.pool.dispatch.upcoming import Upcoming
from tasks_app.runtime.hints.channel import DEEP

KEPT_S = 60
"""The index expires this long after its last entry; no entry is as far ahead."""
LOCK_S = 2.5
"""How long a dead pump keeps others from pumping."""
MOST = 1_000
"""Tasks per move; the next one follows at once."""
MESSAGES = 8
"""Messages at most for the tasks of a queue that are due in one move: enough for the children of a
small worker, while many tasks share them."""
CROWDED_S = 0.05
"""Between two moves while messages wait: the children are busy, and no task would start sooner. The
tasks that become due meanwhile share a message, instead of one each."""
PATIENCE = {"socket_timeout": 1, "socket_connect_timeout": 1, "max_retries": 0}
"""A second, because beat and the worker's parent have other work than to wait for Redis."""

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
# One step: a task that is rescheduled meanwhile has another score, and stays.
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
    """False: another worker does."""
    wait_s: float = 0.0
    """Until the next move is useful."""
    tasks: int = 0


class RedisDelayIndex:
    """The index, for one thread of one process."""

    def __init__(self, app: Celery) -> None:
        self.broker = BrokerConnection(app, hasty=True, **PATIENCE)
        pool = own_name()
        self.envelope = Envelope(app, pool)
        self._token = str(uuid4())
        place = f"delay.{pool}" if pool else "delay"
        self._due, self._pump = f"{place}.due", f"{place}.pump"

    def enter(self, tasks: Sequence[Upcoming]) -> bool:
        """Enter tasks that become due soon; return whether a worker pumps.

        Raises:
            Exception: the broker did not answer.
        """
        arguments: list[object] = []
        for task in tasks:
            arguments += [ceil(task.due_in_s * 1000), f"{task.id} {task.queue}"]
        return bool(
            self.broker.do(
                lambda channel: _run(channel, _ENTER, (self._due, self._pump), arguments)
            )
        )

    def move(self) -> Moved:
        """Take out what is due, if nobody else pumps, and publish it.

        A deep queue gets nothing, as with hints: the scan fills it in better order.

        Raises:
            Exception: the broker did not answer. What was taken out is found by the scan.
        """
        wait_ms, *members = self.broker.do(
            lambda channel: _run(channel, _MOVE, (self._due, self._pump), [self._token])
        )
        if wait_ms < 0:
            return Moved(pumps=False)
        due: dict[str, list[int]] = {}
        for member in members:
            task_id, _, queue = member.decode().partition(" ")
            due.setdefault(queue, []).append(int(task_id))
        depths = [self.broker.do(partial(self._hint, queue, ids)) for queue, ids in due.items()]
        soonest_s = CROWDED_S if any(depths) else 0.0
        return Moved(pumps=True, wait_s=max(wait_ms / 1000, soonest_s), tasks=len(members))

    def _hint(self, queue: str, ids: Sequence[int], channel: Any) -> int:
        """Publish, unless the queue is deep; return how many messages waited there."""
        depth = int(channel.client.llen(queue))
        if depth < DEEP:
            size = len(ids) if depth else ceil(len(ids) / MESSAGES)
            for start in range(0, len(ids), size):
                self.envelope.put(channel, queue, None, ids[start : start + size])
        return depth

    def leave(self) -> None:
        """Let another worker pump at once."""
        try:
            self.broker.do(lambda channel: _run(channel, _LEAVE, (self._pump,), [self._token]))
        finally:
            self.broker.drop()


def _run(channel: Any, script: str, names: Sequence[str], arguments: Sequence[object]) -> Any:
    """Run a script on our keys; kombu does not prefix the keys of an EVAL."""
    keys = [f"{channel.global_keyprefix}{name}" for name in names]
    return channel.client.execute_command("EVAL", script, len(keys), *keys, *arguments)


def delay_index(app: Celery, settings: Settings) -> RedisDelayIndex | None:
    """Return the index if the broker is Redis or compatible; nothing is connected yet."""
    if not settings.delay_index:
        return None
    with app.connection_for_write() as connection:
        return RedisDelayIndex(app) if connection.transport.driver_type == "redis" else None
