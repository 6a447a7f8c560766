"""Torture: real processes are really killed while real work is done; then everything is counted."""

from __future__ import annotations
