"""Celery events of single tasks: masked and written by children, sent by their parent."""

from __future__ import annotations
