"""Hints: short cuts from a producer or an end to a worker."""

from __future__ import annotations


__all__ = ["HINTS"]
