"""Floor 4: looks and judges; never changes anything. No Celery."""

from __future__ import annotations
