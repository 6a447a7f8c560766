"""Floor 1: the SQL. Each function takes a Connection, never commits, and returns records."""

from __future__ import annotations
