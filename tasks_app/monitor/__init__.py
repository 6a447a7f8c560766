"""Floor 4: checks and what pages show. It only reads. No Celery."""

from __future__ import annotations
