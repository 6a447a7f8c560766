"""Commands on schedules."""

from __future__ import annotations
