"""Edits: what becomes of payloads that an operator patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks_app.domain.creation.patch import accepted, patched
from tasks_app.domain.errors import InvalidSelectionError, UnreadableTaskError
from tasks_app.domain.tasks.payload import decode
from tasks_app.pool.operations.selection import Found
from tasks_app.runtime.api.producer import payload_limit
from tasks_app.runtime.handlers.registry import Registry


class Edits:
    """A patch, and the handlers whose models say what may come of it."""

    def __init__(self, patch: Mapping[str, Any] | None, registry: Registry) -> None:
        self._patch, self._registry = patch, registry

    def payload(self, found: Found) -> str:
        """Return the new payload.

        Raises:
            InvalidSelectionError: the task stays as it is; says why, and no value.
        """
        spec = self._registry.get(found.name)
        if spec is None:
            raise InvalidSelectionError("its handler is not known here")
        try:
            payload = decode(found.payload or "{}", "payload")
        except UnreadableTaskError:
            raise InvalidSelectionError("its payload cannot be read") from None
        return accepted(found.name, patched(payload, self._patch), spec, payload_limit())
