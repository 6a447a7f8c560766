"""The tasks that this process has claimed."""
