"""What each address shows or does."""

from __future__ import annotations
