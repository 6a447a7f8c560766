"""Limits, order keys, fair queues, breakers, pauses: in SQL."""
