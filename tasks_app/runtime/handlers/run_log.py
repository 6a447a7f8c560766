"""The logger of a run, whose lines say of which task they are."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

HANDLER_LOG = "tasks_app.handlers"


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """What handlers log through, as ``ctx.log``."""

    def __init__(self, fields: Mapping[str, object], words: str) -> None:
        """Put ``words`` before each line, unless they are empty."""
        super().__init__(logging.getLogger(HANDLER_LOG), fields)
        self._fields = fields
        self._words = words

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **self._fields}
        return (f"{self._words}: {msg}" if self._words else msg), kwargs

    def of(self, fields: Mapping[str, object], words: str) -> RunLog:
        return RunLog({**self._fields, **fields}, f"{self._words}, {words}" if self._words else "")
