"""What a page shows: a function each, which reads and returns a frozen dataclass."""

from __future__ import annotations
