"""Batches in SQL: instances, steps, and the partition repository."""
