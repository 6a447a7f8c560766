"""The payload of a task whose function takes Python arguments, as Celery's tasks do."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from tasks_app.domain.tasks.payload_type import PayloadType

First: TypeAlias = Literal["result", "results", "task_id"]


class Call(BaseModel):
    """``{"args": […], "kwargs": {…}}``; either may be left out."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    first: First | None = None
    """What comes before ``args``: the result of the step that it needs, a list of the results of
    all, or the id of the one that failed."""


CALL = PayloadType(Call)


class CeleryCall(Protocol):
    """A Celery task or signature, for type checkers: nothing else has ``apply_async``."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any: ...
