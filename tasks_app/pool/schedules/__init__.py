"""Schedules and their instants."""
