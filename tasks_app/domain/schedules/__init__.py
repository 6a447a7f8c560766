"""Schedules: when they fire, and what happens to what was missed."""
