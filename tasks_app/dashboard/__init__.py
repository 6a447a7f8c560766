"""Floor 4: pages and a JSON API, an ASGI application. Reads through monitor, acts through verbs."""

from __future__ import annotations
