"""Commands that start and stop processes: workers, one scan, embedded servers, the demo."""

from __future__ import annotations
