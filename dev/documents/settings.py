"""docs/reference/settings.md: each variable of the environment, its default and its meaning."""

from __future__ import annotations

from datetime import timedelta

from dev.documents.source import cell, class_of, fields, generated
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import PREFIX
from tasks_app.domain.durations import format_duration

ABOUT = """
All settings come from the environment, and are read once when a process starts. Write a span as
`30`, `30s`, `10m` or `6h`. An empty value is no value.

`tasks-app config` shows which settings hold where you stand. `tasks-app doctor` names variables
that nobody reads. What database, broker and Celery want besides:
[configuration](../operations/configuration.md).
"""


def page() -> str:
    """Return the page."""
    texts = setting_texts()
    lines = generated("Settings", "tasks_app/domain/config/settings.py", ABOUT)
    lines += ["| variable | default | meaning |", "|---|---|---|"]
    for name, text in texts.items():
        field = Settings.model_fields[name]
        variable = str(field.validation_alias or f"{PREFIX}{name.upper()}")
        lines.append(f"| `{variable}` | {_shown(field.default)} | {cell(text)} |")
    return "\n".join(lines) + "\n"


def setting_texts() -> dict[str, str]:
    """Return what stands under each setting, in the order of the page."""
    parts = [part for part in Settings.__mro__ if part.__module__.startswith("tasks_app.")]
    return {
        name: found[2]
        for part in parts
        for name, found in fields(class_of(part.__module__, part.__name__)).items()
        if name in Settings.model_fields
    }


def _shown(default: object) -> str:
    match default:
        case None | "":
            return "none"
        case timedelta():
            return f"`{format_duration(default)}`"
        case _:
            return f"`{default}`"
