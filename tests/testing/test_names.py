"""What a test may give as a task."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.testing import crash_next, fail_next
from tasks_app.testing.results import name_of


def test_a_handler_a_name_and_a_task_of_django() -> None:
    @handler("mail.send", registry=Registry())
    def send(ctx: object) -> None: ...

    assert name_of(send) == name_of("mail.send") == "mail.send"
    assert name_of(SimpleNamespace(module_path="mails.tasks.send")) == "mails.tasks.send"


@pytest.mark.parametrize("order", [lambda task: fail_next(task, KeyError("x")), crash_next])
def test_a_fault_of_anything_else_is_refused(order) -> None:
    """It would hit nothing, and the test of a failure would pass."""
    with pytest.raises(TypeError, match="is no handler"):
        order(object())
