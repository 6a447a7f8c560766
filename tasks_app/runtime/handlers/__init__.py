"""Handlers: declared, wrapped, and what they hold in their hand."""
