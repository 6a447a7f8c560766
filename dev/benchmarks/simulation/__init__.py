"""A model of the whole system as discrete events: how it scales where we have no such machine."""

from __future__ import annotations
