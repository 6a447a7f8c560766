"""What is measured: one room each, with a function that measures one system once."""

from __future__ import annotations
