"""Handlers: declared, wrapped, and what they are given."""
