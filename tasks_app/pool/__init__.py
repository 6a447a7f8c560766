"""Floor 1: the SQL of the project. A function takes a Connection, never commits, returns records."""

from __future__ import annotations
