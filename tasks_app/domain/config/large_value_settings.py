"""The settings of large values: whether they are kept, where, and how large they may be."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks_app.domain.config.field_types import LargeValues
from tasks_app.domain.config.framework_settings import LayeredSettings


class LargeValueSettings(LayeredSettings):
    """A part of ``Settings``."""

    large_values: LargeValues = ""
    """Where payloads and results above their limits are kept outside of their rows: `database`,
    `folder:/path`, or `module:function` that returns an object store. Empty: they are refused.
    Producers and workers need the same."""
    large_limit: Annotated[int, Field(ge=64 * 1024, le=128 * 1024 * 1024)] = 64 * 1024 * 1024
    """Bytes of JSON of one of them. A worker holds it several times while it reads it."""
