"""How many tasks a second a system can do: computed from what one task costs."""

from __future__ import annotations
