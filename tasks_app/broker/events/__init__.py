"""Celery events of single tasks: written by children, sent by their parent, masked on the way."""

from __future__ import annotations
