"""Floor 2: the actors. They own transactions, write no SQL, and know no Celery."""

from __future__ import annotations
