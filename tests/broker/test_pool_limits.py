"""Which limits a pool can enforce: what is declared in vain is refused by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery.concurrency.base import BasePool

from tasks_app.broker.pools import check_limits
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.handler import HandlerSpec

LIMIT = timedelta(seconds=1)


class OwnPool(BasePool):
    """Somebody's own."""


def nothing(_ctx: Any) -> None:
    """Do nothing."""


SPECS = [
    HandlerSpec("free", nothing, is_async=True),
    HandlerSpec("soft", nothing, timeout=LIMIT),
    HandlerSpec("soft.async", nothing, timeout=LIMIT, is_async=True),
    HandlerSpec("hard", nothing, hard_timeout=LIMIT),
    HandlerSpec("elsewhere", nothing, queue="other", timeout=LIMIT, hard_timeout=LIMIT),
]


def refused(pool: str | type) -> str:
    """The handlers that a worker with this pool names before it ends."""
    try:
        check_limits(pool, SPECS, ["default"])
    except ConfigurationError as error:
        return str(error).partition(" limits of ")[2].partition(":")[0]
    return ""


@pytest.mark.parametrize(
    ("pool", "names"),
    [
        ("prefork", ""),
        ("processes", ""),
        ("solo", "hard (hard_timeout)"),
        ("threads", "soft (timeout), hard (hard_timeout)"),
        (OwnPool, "soft (timeout), soft.async (timeout), hard (hard_timeout)"),
    ],
)
def test_what_is_declared_in_vain_is_refused_by_name(pool: str | type, names: str) -> None:
    assert refused(pool) == names


def test_the_refusal_says_why_and_what_to_do() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        check_limits("threads", SPECS, ["default", "other"])

    said = str(refusal.value)
    assert said.startswith(
        "The threads pool cannot enforce the limits of soft (timeout), elsewhere"
    )
    assert "nothing can be raised in a running thread and no process can be killed" in said
    assert said.endswith("Serve their queues with --pool=prefork, or declare no limit.")
