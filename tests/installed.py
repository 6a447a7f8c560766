"""Versions of others that tests are about."""

from __future__ import annotations

from importlib.metadata import version

CELERY = tuple(int(number) for number in version("celery").split(".")[:2])
NEWEST_CELERY = CELERY >= (5, 7)
