"""An explicit-state model of how a task walks, and a checker that visits every state of it."""

from __future__ import annotations
