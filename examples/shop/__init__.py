"""A shop that lives on tasks_app. Read handlers.py, then sales.py; the rest is the theatre."""

from __future__ import annotations
