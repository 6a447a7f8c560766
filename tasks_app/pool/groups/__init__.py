"""Groups: tasks that are counted as they end, and the task that their end calls."""
