"""Which object store the setting names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.large_values.store import LargeValueStore
from tasks_app.runtime.large_values.folder import FolderStore

FOLDER = "folder:"


def store_at(place: str) -> LargeValueStore:
    """Return the store of ``folder:/path`` or ``module:function``.

    Raises:
        ConfigurationError: there is no such function.
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
    return made()
