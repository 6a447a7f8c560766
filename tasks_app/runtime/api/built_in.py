"""The handlers that every worker has."""

from __future__ import annotations

from copy import copy

from tasks_app.runtime.api.maps import run_map
from tasks_app.runtime.api.undo import run_undo
from tasks_app.runtime.handlers.registry import Registry


def with_ours(registry: Registry) -> Registry:
    """Return a registry with these handlers, and ours."""
    whole = copy(registry)
    whole.specs = registry.specs | {ours.spec.name: ours.spec for ours in (run_map, run_undo)}
    return whole
