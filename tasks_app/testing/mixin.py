"""The kit as methods, for ``unittest`` and what is built on it, as Django's test cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import Duration
from tasks_app.domain.handlers.spec import Handler
from tasks_app.domain.tasks.records import Task
from tasks_app.runtime.db.connections import Raw, Sync
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.testing import creation, draining, flows, handler_call
from tasks_app.testing.handler_call import ContextOptions
from tasks_app.testing.results import Drained

P = ParamSpec("P")
T = TypeVar("T")


def _on_session(
    verb: Callable[Concatenate[Sync | Raw, P], T],
) -> Callable[Concatenate[TasksTestMixin, P], T]:
    """Return a method that calls ``verb`` with the session of the test."""

    @wraps(verb)
    def method(test: TasksTestMixin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if test.tasks_session is None:
            raise RuntimeError(
                "This test has no tasks_session. Set it to a session or connection in setUp()."
            )
        return verb(test.tasks_session, *args, **kwargs)

    return method


class TasksTestMixin:
    """Methods of the kit, on the session or connection of the test.

    >>> class OrderTest(TasksTestMixin, unittest.TestCase):
    ...     def setUp(self):
    ...         self.tasks_session = session
    ...     def test_mail(self):
    ...         task_id = create_task(session, send_mail, {"to": "b@example.org"})
    ...         self.assert_created("mail.send", {"to": "b@example.org"})
    ...         self.drain().assert_succeeded()
    >>> OrderTest("test_mail").debug()
    """

    tasks_session: Sync | Raw | None = None
    """What ``create_task`` takes. None: tasks are committed, ``tasks_settings`` says where."""
    tasks_settings: Settings | None = None
    """None: from the environment."""
    tasks_registry: Registry = HANDLERS
    """Whose handlers run."""

    created: Final = _on_session(creation.created)
    assert_created: Final = _on_session(creation.assert_created)
    assert_flow: Final = _on_session(flows.assert_flow)
    fail_next: Final = staticmethod(draining.fail_next)
    crash_next: Final = staticmethod(draining.crash_next)

    def tearDown(self) -> None:
        """Forget the faults that hit no run."""
        draining.FAULTS.clear()
        up: Callable[[], None] | None = getattr(super(), "tearDown", None)
        if up is not None:
            up()

    def run_task(
        self,
        task: Handler[Any, Any] | Task | str,
        payload: Any = None,
        **options: Unpack[ContextOptions],
    ) -> Any:
        """As the function :func:`run`, on ``tasks_session``; ``run`` is a method of TestCase."""
        given: Any = task
        session, registry = self.tasks_session, self.tasks_registry
        return handler_call.run(given, payload, session=session, registry=registry, **options)

    def drain(self, *, queues: Sequence[str] = ()) -> Drained:
        """As the function :func:`drain`, in the transaction of ``tasks_session`` if that is set."""
        given: Any = self.tasks_session
        settings, registry = self.tasks_settings, self.tasks_registry
        return draining.drain(given, settings=settings, registry=registry, queues=queues)

    def travel(self, span: Duration) -> None:
        """As the function :func:`travel`, likewise."""
        draining.travel(
            span, self.tasks_session, settings=self.tasks_settings, registry=self.tasks_registry
        )
