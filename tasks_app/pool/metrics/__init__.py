"""Metrics: what one scrape asks of the database, each answer bounded. Reads only."""

from __future__ import annotations
