"""Floor 0: what a task is. Standard library and pydantic only; no SQL, no Celery, no I/O."""

from __future__ import annotations
