"""The payload of a task whose function takes Python arguments, as Celery's tasks do."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field

from tasks_app.domain.tasks.payload_type import PayloadType


class Call(BaseModel):
    """``{"args": […], "kwargs": {…}}``; either may be left out."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    first: Any = None
    """What a canvas puts before ``args``: ``"a"`` is the result of the needed step ``a``,
    ``["a", ["b", "c"]]`` a list of such, ``{"task_id": "a"}`` the id of the step that failed."""


CALL = PayloadType(Call)
CALL_ID = "celery_task_id"
"""The header of a task that has the ``task_id`` of its caller, which is its biz_key, too."""


class CeleryCall(Protocol):
    """A Celery task or signature, for type checkers: nothing else has ``apply_async``."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any: ...
