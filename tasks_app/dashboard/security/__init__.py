"""Who asks, what they may do, and whether the request is their own will."""

from __future__ import annotations

from tasks_app.actions.action import Role

__all__ = ["Role", "Visitor"]
