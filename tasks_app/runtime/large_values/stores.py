"""Which object store the setting names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from tasks_app.domain.errors import ConfigurationError, TasksError
from tasks_app.domain.large_values.store import LargeValueStore
from tasks_app.runtime.large_values.folder import FolderStore

FOLDER = "folder:"


class LargeStoreError(TasksError):
    """The object store did not answer, or this process has none."""


def store_at(place: str) -> LargeValueStore:
    """Return the store of ``folder:/path`` or ``module:function``.

    Raises:
        ConfigurationError: there is no such function.
        LargeStoreError: it raises.
    """
    if place.startswith(FOLDER):
        return FolderStore(Path(place.removeprefix(FOLDER)))
    module, _, name = place.partition(":")
    try:
        made: Callable[[], LargeValueStore] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise ConfigurationError(
            f"TASKS_APP_LARGE_VALUES is wrong: {place} is no function. "
            "Write database, folder:/path or module:function."
        ) from None
    try:
        return made()
    except Exception as error:
        raise LargeStoreError(
            f"The store of large values cannot be opened: {brief(error)}. "
            "See to the function that TASKS_APP_LARGE_VALUES names, and try again."
        ) from None


def brief(error: Exception) -> str:
    """Return the kind of an error, and what the system says; another text may hold anything."""
    said = error.strerror if isinstance(error, OSError) and error.errno else None
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
