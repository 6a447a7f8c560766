"""A run in SQL: claimed, renewed, settled, rescued."""
