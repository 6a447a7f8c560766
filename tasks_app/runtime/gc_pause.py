"""Big calls without the garbage collector: what they make is no garbage before they end.

It would walk all that the process holds, again and again, for a third of the time of such a call.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect nothing during the block.

    Of blocks that overlap in several threads the first one's end lets it collect again, so that
    nobody keeps it off for long.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
