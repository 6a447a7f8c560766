"""Failpoints in every Python process that has this folder on its path, before anything else."""  # noqa: INP001  a folder, not a package

from __future__ import annotations

from dev.torture.failpoints import set_up

set_up()
