"""``tasks-app bench``: a short load on somebody's database, in a schema of its own."""

from __future__ import annotations
