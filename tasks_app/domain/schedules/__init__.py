"""Schedules: when they fire, and what becomes of missed instants."""
