"""What runs inside the environment of each system."""

from __future__ import annotations
