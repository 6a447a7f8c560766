"""Groups of tasks, and logical locks."""
