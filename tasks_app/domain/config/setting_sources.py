"""Effective settings: what holds in this process, and who said so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import SecretStr

from tasks_app.domain.config.masking import masked, masked_url
from tasks_app.domain.config.schema_name import PREFIX
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import format_duration


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting, fit to be shown."""

    name: str
    value: Any
    source: str


def effective_settings(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> list[Effective]:
    """Return all settings of ours with their sources, secrets masked."""
    found = []
    for name, field in Settings.model_fields.items():
        variable = str(field.validation_alias or f"{PREFIX}{name.upper()}")
        source = "environment" if environment.get(variable) else "default"
        found.append(Effective(variable, _shown(getattr(settings, name), name), source))
    return found


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return variables that look like ours and are none: nobody else says that one is misspelt."""
    known = {effective.name for effective in effective_settings(Settings.model_construct())}
    return sorted(
        name
        for name in environment
        if name.startswith(PREFIX) and name not in known | _INTERNAL and "_TEST_" not in name
    )


_INTERNAL = {f"{PREFIX}{name}" for name in ("NODE", "QUEUES", "SLOTS")}
"""Told by a worker's parent to its children."""


def _shown(value: Any, name: str) -> Any:
    match value:
        case SecretStr():
            return masked_url(value.get_secret_value())
        case timedelta():
            return format_duration(value)
        case _:
            return masked(value, name)
