"""Partitions by day: made, pruned, dropped."""
