"""How long payloads and results may be here."""

from __future__ import annotations

from functools import cache


@cache
def payload_limit() -> int:
    """In bytes."""
    from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

    return load_settings().payload_limit
