"""Commands on the database and on what operators did: schema, grants, audit, checks, retention."""

from __future__ import annotations
