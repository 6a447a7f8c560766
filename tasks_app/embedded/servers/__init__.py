"""One server: its binary, its data folder, its process, its port."""

from __future__ import annotations
