"""Errors: each message is one sentence on what is wrong and one on what to do."""

from __future__ import annotations


class EmbeddedError(RuntimeError):
    """An embedded server cannot do what was asked."""


class AlreadyOwnedError(EmbeddedError):
    """Another process owns the folder, and with it the servers in it."""
