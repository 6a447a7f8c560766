"""Celery tasks of other apps: run from the pool unchanged, and called into a transaction."""

from __future__ import annotations
