"""Why a task does not run, or what became of it: facts, small rules over them, and the words."""

from __future__ import annotations
