"""What a worker's consumer must live through."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tasks_app.broker.consumer import PatientConsumer
from tests.installed import NEWEST_CELERY

pytestmark = pytest.mark.skipif(not NEWEST_CELERY, reason="it closes no connection here")


@pytest.fixture
def consumer() -> PatientConsumer:
    """One that has just lost its connection; nothing else of it is needed."""
    consumer = PatientConsumer.__new__(PatientConsumer)
    consumer.connection = Mock(connection_errors=(OSError,), channel_errors=())
    return consumer


def test_a_connection_that_cannot_be_closed_does_not_end_the_worker(
    consumer: PatientConsumer,
) -> None:
    consumer.connection.close.side_effect = AttributeError("'NoneType' object has no attribute")

    consumer.on_connection_error_after_connected(OSError("lost"))

    assert consumer.connection is None


def test_what_goes_wrong_before_it_is_let_go_is_not_hidden(
    consumer: PatientConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Mock(side_effect=RuntimeError)
    monkeypatch.setattr("celery.worker.consumer.consumer.bound_open_broker_sockets", broken)

    with pytest.raises(RuntimeError):
        consumer.on_connection_error_after_connected(OSError("lost"))
