"""Schedules: declared, previewed, fired."""
