"""The claimant: claims for one child, and gives back claims whose reply was lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.pool.runs.claim_sql import Claimer
from tasks_app.pool.runs.release import release_token
from tasks_app.runtime.db.errors import is_refused
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_claim
from tasks_app.runtime.inflight.parts import ChildParts

log = quiet_logger(__name__)


class Claimant:
    """Of one child; its threads may claim at once."""

    def __init__(self, parts: ChildParts) -> None:
        owner, self._lease = parts.identity.owner, parts.settings.lease
        self._inflight = parts.inflight
        self._database = parts.database
        specs = tuple(parts.registry)
        self.every = claimer_of(owner, self._lease, specs)
        self.plain = claimer_of(owner, self._lease, (s for s in specs if not s.is_async))
        """Of handlers that take a thread."""
        self.asynchronous = claimer_of(owner, self._lease, (s for s in specs if s.is_async))
        """Of handlers that take a place in the async pool."""

    def claim(self, ask: Callable[[UUID], list[ClaimedTask]]) -> list[ClaimedTask]:
        """Claim under a new token, and put in flight what was claimed.

        A lease counts from before the claim was sent. Hooks are told first: another thread may
        start a task as soon as it is in flight.

        Raises:
            sqlalchemy.exc.DBAPIError: the reply never came; what it may have taken is given back by
                its token, until that is answered. Or there is no connection to run it on.
        """
        self._secure()
        token, began = uuid4(), time.monotonic()
        try:
            claimed = ask(token)
        except SQLAlchemyError as error:
            log.warning("a claim was not answered: %s", brief(error))
            if not is_refused(error):
                self._inflight.write_later(lambda connection: release_token(connection, token))
            raise
        if claimed:
            if HOOKS.wanted:
                HOOKS.tell(of_claim(NoticeKind.RECEIVED, task) for task in claimed)
            self._inflight.receive(claimed, began + self._lease.total_seconds())
        return claimed

    def _secure(self) -> None:
        """Claim nothing without a connection to run it on.

        A child that holds no task leaves its own connections to the others. Otherwise, at the
        server's limit, each child would keep one and none would get a second.
        """
        try:
            self._database.secure()
        except SQLAlchemyError as error:
            log.warning("nothing is claimed, no connection is available: %s", brief(error))
            if self._inflight.empty:
                self._database.spare()
            raise


def claimer_of(owner: str, lease: timedelta, specs: Iterable[HandlerSpec]) -> Claimer:
    known = tuple(specs)
    return Claimer(
        owner,
        lease,
        names=tuple(spec.name for spec in known),
        max_attempts=tuple(spec.max_attempts for spec in known),
        at_most_once=tuple(spec.at_most_once for spec in known),
    )
