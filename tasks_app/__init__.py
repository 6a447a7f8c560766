"""tasks_app: durable jobs on PostgreSQL and Celery."""
from __future__ import annotations
