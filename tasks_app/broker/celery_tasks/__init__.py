"""Tasks of other Celery apps: run from the pool unchanged, and called within a transaction."""

from __future__ import annotations
