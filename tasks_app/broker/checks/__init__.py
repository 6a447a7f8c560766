"""What ``doctor`` and a start check of Celery and the broker."""
