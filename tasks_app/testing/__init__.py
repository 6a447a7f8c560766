"""Floor 4, for users' tests: run what is due in this process, on a real database. No Celery."""

from __future__ import annotations

from tasks_app.testing.drain import drain

__all__ = ["drain"]
