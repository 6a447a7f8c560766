"""What doctor and a start look at, of Celery and the broker."""
