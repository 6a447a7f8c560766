"""A shop that lives on tasks_app. Read handlers.py, then sales.py; the rest runs the demo."""

from __future__ import annotations
