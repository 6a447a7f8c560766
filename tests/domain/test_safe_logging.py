"""Our loggers never raise, and are loggers like all others otherwise."""

from __future__ import annotations

import logging

import pytest

from tasks_app.domain.tasks.error_text import quiet_logger


class _RaisingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("no log")


def test_a_handler_that_raises_is_not_heard() -> None:
    log = quiet_logger("tasks_app.test.quiet")
    handler = _RaisingHandler()
    log.addHandler(handler)

    try:
        log.error("lost")
    finally:
        log.removeHandler(handler)


def test_it_is_the_logger_of_its_name(caplog: pytest.LogCaptureFixture) -> None:
    log = quiet_logger("tasks_app.test.quiet")

    log.error("kept")

    assert log is logging.getLogger("tasks_app.test.quiet")
    assert [(r.message, r.funcName) for r in caplog.records] == [
        ("kept", "test_it_is_the_logger_of_its_name")
    ]
