"""A list of Redis may hold anything: what is no message is dropped.

kombu parses it in the loop of the worker's parent, and an exception there ends the worker: half a
JSON text would do, pushed by anybody who may write to the broker.
"""

from __future__ import annotations

from queue import Empty
from typing import Any

from kombu.transport import redis as transport
from redis.exceptions import RedisError

from tasks_app.broker.internals import SOUND_LISTS
from tasks_app.domain.safe_logging import quiet_logger

log = quiet_logger(__name__)

_TROUBLE = (Empty, OSError, RedisError)
"""Errors of the connection, which Celery handles."""


class SoundChannel(transport.Channel):
    """kombu's channel, which drops what cannot be parsed."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except _TROUBLE:
            raise
        except Exception as error:
            log.error("dropped what is no message: %s", type(error).__name__)  # noqa: TRY400  it may show payloads
            return True


class SoundSentinelChannel(SoundChannel, transport.SentinelChannel):
    """The same behind Sentinel."""


def drop_what_is_no_message() -> None:
    """Use these channels for every connection to Redis that this process makes from now on."""
    if not SOUND_LISTS.works:
        return
    transport.Transport.Channel = SoundChannel
    transport.SentinelTransport.Channel = SoundSentinelChannel
