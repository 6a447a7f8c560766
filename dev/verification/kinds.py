"""The tasks that configurations and mutants are made of."""

from __future__ import annotations

from dev.verification.rows import Kind

WRITES = Kind("writes through ctx.session")
WRITES_OR_RAISES = Kind("writes through ctx.session, or raises", may_fail=True)
MAILS = Kind("has effects outside", in_session=False)
MAILS_OR_RAISES = Kind("has effects outside, or raises", in_session=False, may_fail=True)
ASYNC = Kind("async, effects outside", in_session=False, concurrent=True)
ASYNC_KILLER = Kind("async, kills its process", in_session=False, concurrent=True, kills="child")
ONCE = Kind("at_most_once, effects outside", in_session=False, at_most_once=True)
ONCE_WRITES = Kind("at_most_once, writes through ctx.session", at_most_once=True)
KILLER = Kind("kills its process", kills="child")
KILLER_AT_FETCH = Kind("kills its process before it starts", kills="child at fetch")
KILLER_OF_CONNECTIONS = Kind("ends its own connection", kills="connection")
KILLER_OF_WORKERS = Kind("kills its whole worker", kills="worker")
HANGS = Kind("never returns", hangs=True)
DISABLED = Kind("disabled", enabled=False)
EXPIRES = Kind("may expire", expires=True)
LATER = Kind("not due yet", not_due_yet=True)

ONE_CHILD_EACH = (0, 1)
"""Two workers with one child each; the default is one worker with two children."""
