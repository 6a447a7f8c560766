"""Celery's configuration, and what of it reaches us."""
