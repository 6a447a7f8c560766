"""``celeryconfig.py``, the module in which people who know Celery look for its settings."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any


def read_celeryconfig() -> dict[str, Any]:
    """Return its settings; it need not exist. Celery's old names in capitals do not count."""
    return {
        key: value
        for key, value in _names().items()
        if key[0].islower() and not isinstance(value, type(annotations) | ModuleType)
    }


def written_in_capitals() -> list[str]:
    """Return names of the old kind, which are passed over."""
    return sorted(key for key, value in _names().items() if key.isupper() and not callable(value))


def _names() -> dict[str, Any]:
    name = os.environ.get("CELERY_CONFIG_MODULE", "celeryconfig")
    try:
        return vars(importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return {}
