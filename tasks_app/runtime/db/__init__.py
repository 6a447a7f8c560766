"""Engines, transactions, and what became of a connection."""
