"""Where a process of a test looks for modules."""

from __future__ import annotations

import os
from pathlib import Path


def python_path(*folders: Path) -> str:
    """Return the folders, and behind them what this process was given: a mutant of the product."""
    given = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([*map(str, folders), *given])
