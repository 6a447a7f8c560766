"""From a read model to HTML or JSON."""

from __future__ import annotations
