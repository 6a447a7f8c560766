"""A module that declares schedules, as a user's does; the registry is the test's."""

from __future__ import annotations

from typing import Any

from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.schedules.declared import schedule


def declare(registry: Registry, name: str = "night", task: str = "t", **options: Any) -> None:
    """Say that there is a schedule."""
    schedule(name, task, registry=registry, **(options or {"cron": "30 2 * * *"}))
