"""Big calls and imports without the garbage collector.

It would walk all objects of the process again and again, for a third of the time of such a call
and a tenth of a worker's imports, and find none: what they make is still used.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect nothing during the block; of overlapping blocks the first to end collects again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
