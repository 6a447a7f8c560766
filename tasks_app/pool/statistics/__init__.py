"""Counters of tasks in the database: written, added up, compared with the pools, read."""
