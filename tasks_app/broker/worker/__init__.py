"""A Celery worker that is ours."""
