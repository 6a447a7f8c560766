"""Metrics: the state of the pools as Prometheus reads it, from one process for all."""

from __future__ import annotations
