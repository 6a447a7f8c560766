"""Found by the app's name."""

from __future__ import annotations

from tasks_app import handler


@handler("shop.found")
def found(ctx):
    """Return that it ran."""
    return {"ran": True}
