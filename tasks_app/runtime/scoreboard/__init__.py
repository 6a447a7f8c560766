"""Shared memory in which children note what they do, and who watches it."""
