"""Logical locks on groups of named resources."""
