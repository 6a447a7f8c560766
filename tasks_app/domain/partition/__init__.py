"""Partitions of a batch: which keys each one owns, and whether a plan gives every row one owner."""
