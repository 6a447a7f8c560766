"""How the application is reached."""

from __future__ import annotations
