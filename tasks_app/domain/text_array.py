"""Arrays of texts, as PostgreSQL writes them."""

from __future__ import annotations

from collections.abc import Iterable

_BETWEEN = "\0"
"""No text in PostgreSQL holds it."""


def text_array(values: Iterable[object]) -> str:
    """Return a PostgreSQL array of the texts of ``values``, with any characters in them."""
    listed = list(map(str, values))
    if not listed:
        return "{}"
    escaped = (
        _BETWEEN.join(listed).replace("\\", "\\\\").replace('"', '\\"').replace(_BETWEEN, '","')
    )
    return f'{{"{escaped}"}}'
