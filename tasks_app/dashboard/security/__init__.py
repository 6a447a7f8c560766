"""Who asks, what they may do, and whether the request is their own will."""

from __future__ import annotations

from tasks_app.dashboard.security.identity import Role, Visitor

__all__ = ["Role", "Visitor"]
