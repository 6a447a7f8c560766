"""Tasks: created, read, changed, cancelled, requeued."""
