"""An explicit-state model of a task's life, and a checker that visits every state of it."""

from __future__ import annotations
