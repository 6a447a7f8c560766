"""Messages out: through Celery, bounded in time by the defaults' socket timeouts."""

from __future__ import annotations

from collections.abc import Sequence

from celery import Celery

from tasks_app.broker.defaults import EXECUTE
from tasks_app.domain.errors import PublishError

PATIENCE_S = 2.0


class CeleryPublisher:
    """Publishes ids, and nothing but ids."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def publish(self, queue: str, dispatch_id: int, ids: Sequence[int]) -> None:
        """Send one message.

        Raises:
            PublishError: it was perhaps not sent.
        """
        try:
            self._app.tasks[EXECUTE].apply_async(
                args=(dispatch_id, list(ids)), queue=queue, ignore_result=True, argsrepr="(ids)"
            )
        except Exception as error:
            raise _away(error) from error

    def probe(self) -> None:
        """Pass if the broker answers.

        Raises:
            PublishError: it does not.
        """
        try:
            with self._app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, timeout=PATIENCE_S)
        except Exception as error:
            raise _away(error) from error


def _away(error: Exception) -> PublishError:
    return PublishError(
        f"The broker did not take a message ({type(error).__name__}). "
        "The tasks are safe in the database; check that the broker runs.",
        certain=_was_refused(error),
    )


def _was_refused(error: BaseException | None) -> bool:
    """Tell whether nobody listened at all: then nothing was sent."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        error = error.__cause__ or error.__context__
    return False
