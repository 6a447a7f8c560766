"""What comes out of a list of Redis may be anything: what is no message is dropped.

kombu takes it apart in the loop of the worker's parent, and what it raises there ends the worker:
half a JSON text, pushed by whoever may write to the broker, would do.
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
"""Of the connection: what these mean, Celery knows."""


class SoundChannel(transport.Channel):
    """kombu's channel otherwise."""

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
    """Let all connections to Redis that this process makes from now on read so."""
    if not SOUND_LISTS.works:
        return
    transport.Transport.Channel = SoundChannel
    transport.SentinelTransport.Channel = SoundSentinelChannel
