"""Large values: put outside of their rows, loaded where a task runs, removed with their task."""
