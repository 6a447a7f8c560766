"""Commands on tasks: create, look, change, explain."""

from __future__ import annotations
