"""Batch jobs: large work, split into partitions that are checked before anything starts."""
