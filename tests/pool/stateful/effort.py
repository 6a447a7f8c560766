"""How long the stateful tests search."""

from __future__ import annotations

import os

EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "0"))
"""So many at random, from the seed that is told; 0: always the same ones, in every `make test`."""


STEPS = 40
