"""Floor 1: every SQL statement of the project, one verb per room.

A verb takes a Connection, never commits, and returns records. ``now`` is for tests; None means the
database's clock, the only one that decides anything.
"""

from __future__ import annotations
