"""A remote control command that leaves a worker alive, connected, and hearing nothing."""

from __future__ import annotations

from typing import Any

from celery.worker.control import control_command


@control_command()
def deafen(state: Any) -> None:
    """Cancel the consumer of messages; nobody else in the worker is told."""
    state.consumer.task_consumer.cancel()
