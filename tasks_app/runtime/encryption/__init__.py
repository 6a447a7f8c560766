"""Encryption of what tasks hold: in this process, by its settings."""
