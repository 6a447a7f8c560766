"""Which kinds of poison there are. Workers and tests import it."""

from __future__ import annotations

MAX_ATTEMPTS = 3
DIES = (
    *("sigkill", "exits_3", "exits_0", "null_pointer", "sigsegv", "sigabrt", "stack_overflow"),
    *("becomes_another_program", "closes_descriptors", "daemon_and_exit"),
)
HANGS = ("hang", "hang_with_the_gil", "hang_stopped", "hang_as_another_program", "endless_in_c")
"""To be killed at their hard limit."""
RAISES = ("memory_limit",)
"""The process lives."""
ASKS = ("sigterm",)
"""A signal that anybody may have sent: it counts as a crash, not as a failure."""
POISONS = (*DIES, *HANGS, *RAISES, *ASKS)
