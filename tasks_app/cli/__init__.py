"""Floor 5: commands that parse, call one function below, and print."""

from __future__ import annotations
