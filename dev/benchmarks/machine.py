"""What the measurements ran on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from dev.benchmarks.environments import PROJECT


def machine() -> dict[str, Any]:
    """Describe it, without names of hosts or users."""
    about = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", about.read_text()) if about.exists() else None
    return {
        "cpu": model.group(1) if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """Return the short commit of the checkout, with a + when it is not clean."""
    name = _git("rev-parse", "--short", "HEAD")
    return name + "+" * bool(_git("status", "--porcelain", "-uno")) if name else "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PROJECT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
