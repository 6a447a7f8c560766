"""What a handler is, and how its run ends for the task."""
