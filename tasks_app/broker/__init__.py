"""Floor 4: the Celery edge. Only this room and ``tasks_app/celery.py`` import Celery."""

from __future__ import annotations
