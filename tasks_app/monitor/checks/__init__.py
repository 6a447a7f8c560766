"""What ``doctor`` looks at in the database."""

from __future__ import annotations
