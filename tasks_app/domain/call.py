"""The payload of a task whose function takes Python arguments, as Celery's do."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Call(BaseModel):
    """``{"args": […], "kwargs": {…}}``; either may be left out."""

    model_config = ConfigDict(extra="forbid")

    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
