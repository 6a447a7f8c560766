"""The payload of a task whose function takes Python arguments, as Celery's do."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from tasks_app.domain.tasks.payload_type import PayloadType


class Call(BaseModel):
    """``{"args": […], "kwargs": {…}}``; either may be left out."""

    model_config = ConfigDict(extra="forbid")

    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)


CALL = PayloadType(Call)
"""The payload of all such tasks."""


class CeleryCall(Protocol):
    """A task or signature of Celery, as type checkers know it."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Only they have this."""
