"""How long payloads and results may be here."""

from __future__ import annotations

from functools import cache


@cache
def payload_limit() -> int:
    """In bytes, of a payload that stands in its row."""
    from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

    return load_settings().payload_limit


@cache
def creation_limit() -> int:
    """In bytes, of the payload of a new task; above the other one it is kept outside of the row."""
    from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

    settings = load_settings()
    in_row = settings.payload_limit
    return max(in_row, settings.large_limit) if settings.large_values else in_row
