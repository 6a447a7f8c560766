"""Payloads and results that are too large for their rows."""
