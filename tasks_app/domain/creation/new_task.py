"""What a producer says of one task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from tasks_app.domain.tasks.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeVar, Unpack

    from tasks_app.domain.handlers.spec import Handler
    from tasks_app.domain.tasks.call_payload import CeleryCall
    from tasks_app.domain.tasks.payload import Payload

    P = TypeVar("P")


@dataclass(slots=True, init=False)  # frozen, it would take four times as long to make
class NewTask:
    """One task to create, as ``create_tasks`` takes them: what ``create_task`` takes of it.

    Options are given by keyword, or all at once as ``options``.
    """

    task: Any
    """A task name, the handler itself, or a Celery task or signature."""
    payload: Any
    options: TaskOptions | None
    args: Sequence[Any] | None
    """With ``kwargs``, instead of a payload: what a Celery task is called with."""
    kwargs: Mapping[str, Any] | None

    @overload
    def __init__(
        self,
        task: Handler[P, Any],
        payload: P,
        options: TaskOptions | None = None,
        **more: Unpack[TaskOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        task: Handler[None, Any],
        payload: None = None,
        options: TaskOptions | None = None,
        **more: Unpack[TaskOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        task: str | CeleryCall,
        payload: Payload = None,
        options: TaskOptions | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **more: Unpack[TaskOptions],
    ) -> None: ...
    def __init__(
        self,
        task: Any,
        payload: Any = None,
        options: TaskOptions | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **more: Unpack[TaskOptions],
    ) -> None:
        self.task, self.payload, self.args, self.kwargs = task, payload, args, kwargs
        self.options = {**(options or {}), **more} if more else options
