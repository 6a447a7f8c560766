"""Shared memory in which children say how they fare, and who watches it."""
