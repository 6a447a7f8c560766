"""What the dashboard's pages read: bounded reads that lock nothing."""

from __future__ import annotations
