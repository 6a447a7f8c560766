"""Hints: short cuts from a producer or an end to a worker."""

from __future__ import annotations

from tasks_app.runtime.hints.hints import HINTS

__all__ = ["HINTS"]
