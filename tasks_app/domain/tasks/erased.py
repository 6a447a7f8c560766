"""What stands where something was erased."""

from __future__ import annotations

ERASED = "erased"
MARK = "$erased"
BEGIN = f'{{"{MARK}":'
"""With what the JSON text of an erased value begins; the instant follows."""
