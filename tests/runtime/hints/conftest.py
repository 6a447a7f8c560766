"""Fixtures of the tests of hints."""

from __future__ import annotations

from tests.runtime.hints.ear import ear

__all__ = ["ear"]
