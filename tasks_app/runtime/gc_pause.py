"""Big calls and imports without the garbage collector: what they make is no garbage yet.

It would walk all objects of the process again and again, for a third of the time of such a call,
and a tenth of the imports of a worker.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect nothing during the block.

    If blocks of several threads overlap, the first one to end turns it on again, so that it is
    never off for long.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
