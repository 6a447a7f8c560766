"""Claims tasks for one child process: the ids of a message, or due tasks of its queues."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.pool.dispatch.set_aside import handlers_of_other_workers, tasks_of_other_workers
from tasks_app.pool.flow_control.order_and_limits import find_gated_tasks
from tasks_app.pool.runs.claim import Claimer, Claims, claim, claim_next, still_pending
from tasks_app.pool.runs.leases import release_token
from tasks_app.pool.runs.settle import settle_nothing
from tasks_app.runtime import scan
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_refused
from tasks_app.runtime.execution.in_flight import InFlight
from tasks_app.runtime.flow_control.admission import AdmissionControl, Fairness
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.hint_sender import Hint
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_claim
from tasks_app.runtime.scan import EmptyPollBackoff, ScanPasses
from tasks_app.runtime.scoreboard import Slot

log = quiet_logger(__name__)


class Claimant:
    """Of one child; its threads may claim at the same time."""

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

        A lease counts from before the claim was sent. Hooks are called first: another thread may
        start a task as soon as it is in flight.

        Raises:
            sqlalchemy.exc.DBAPIError: the reply never came, and what it may have taken is given
                back by its token. Or there is no connection to run it on.
        """
        self._ensure_connections()
        token, began = uuid4(), time.monotonic()
        try:
            claimed = ask(token)
        except SQLAlchemyError as error:
            log.warning("a claim was not answered: %s", first_line(error))
            if not is_refused(error):
                self._inflight.write_later(lambda connection: release_token(connection, token))
            raise
        if claimed:
            if HOOKS.wanted:
                HOOKS.tell(of_claim(NoticeKind.RECEIVED, task) for task in claimed)
            self._inflight.receive(claimed, began + self._lease.total_seconds())
        return claimed

    def _ensure_connections(self) -> None:
        """Raise SQLAlchemyError without a connection to run tasks on.

        Then a child that holds no task leaves its own to the others. Otherwise, at the server's
        limit, each child would keep one and none would get a second.
        """
        try:
            self._database.ensure_connections()
        except SQLAlchemyError as error:
            log.warning("nothing is claimed, no connection is available: %s", first_line(error))
            if self._inflight.empty:
                self._database.close_idle()
            raise


def claimer_of(owner: str, lease: timedelta, specs: Iterable[HandlerSpec]) -> Claimer:
    known = tuple(specs)
    return Claimer(
        owner,
        lease,
        names=tuple(spec.name for spec in known),
        max_attempts=tuple(spec.max_attempts for spec in known),
        at_most_once=tuple(spec.at_most_once for spec in known),
        locking=frozenset(spec.name for spec in known if spec.locks is not None),
    )


HINDERED_S = 1.0
"""For how long the short claim is left out after it found nothing and the long one did."""


class Fetcher:
    """Claims the ids of a message, by the cheapest of three statements that finds any.

    The short claim (UNHINDERED) serves where nothing at all is limited or paused. The long one
    reads pauses and queue defaults (UNGATED). `AdmissionControl` locks gates (ADMITTED, CLEAR).
    """

    def __init__(self, parts: ChildParts, claimant: Claimant) -> None:
        self._database = parts.database
        self._admission = parts.admission
        self._claimant = claimant
        self.hindered_until = 0.0  # until then, by ``time.monotonic``, the short claim is left out
        self._gated = False  # the last long claim took tasks behind gates (limits, order keys)
        self._prepared = False

    def prepare_statements(self) -> None:
        """Claim and settle nothing, once, so that the first task need not wait for plans.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        if self._prepared:
            return
        every = self._claimant.every
        with self._database.single() as connection:
            for _ in range(2):  # from the second time on the driver prepares a statement
                claim(connection, [], every, uuid4(), Claims.UNHINDERED)
                claim(connection, [], every, uuid4())
                settle_nothing(connection)
        self._prepared = True

    def claim(self, ids: Sequence[int]) -> list[ClaimedTask] | None:
        try:
            return self._claimant.claim(lambda token: self._by_id(ids, token))
        except SQLAlchemyError:
            return None

    def still_waiting(self, ids: list[int]) -> list[int]:
        """Check before the next claim: all ids of a message that comes twice may be gone."""
        if not ids:
            return []
        try:
            with self._database.single() as connection:
                return still_pending(connection, ids)
        except SQLAlchemyError:
            return []

    def _by_id(self, ids: Sequence[int], token: UUID) -> list[ClaimedTask]:
        now = time.monotonic()
        if now < self.hindered_until:
            return self._claim_long(ids, token)
        with self._database.single() as connection:
            claimed = claim(connection, ids, self._claimant.every, token, Claims.UNHINDERED)
        if not claimed:
            claimed = self._claim_long(ids, token)
            if claimed:
                self.hindered_until = now + HINDERED_S
        return claimed

    def _claim_long(self, ids: Sequence[int], token: UUID) -> list[ClaimedTask]:
        claimed = self._with_or_without_gates(ids, token)
        if not claimed:  # none of the kind that the last message was of
            self._gated = not self._gated
            claimed = self._with_or_without_gates(ids, token)
        return claimed

    def _with_or_without_gates(self, ids: Sequence[int], token: UUID) -> list[ClaimedTask]:
        if self._gated:
            return self._admission.claim(ids, self._claimant.every, token)
        with self._database.single() as connection:
            return claim(connection, ids, self._claimant.every, token)


NEXT_TIME = float("inf")
FAIR_S = 1.0  # how long it remembers which queues are fair


class Poller:
    """Every method that claims raises ``DBAPIError`` if the database did not answer."""

    def __init__(self, parts: ChildParts, claimant: Claimant) -> None:
        self._scan_interval_s = parts.settings.scan_interval.total_seconds()
        self._database = parts.database
        self._admission = parts.admission
        self._claimant = claimant
        self._fairness = Fairness()
        self._fair: set[str] = set()
        self._fair_until = 0.0
        self._turn = 0
        self._passes: defaultdict[object, ScanPasses] = defaultdict(lambda: ScanPasses(scan.PACES))
        self._gates_at: dict[tuple[str, ...], float] = {}
        """When tasks behind gates (limits, keys) have their next turn, for each set of names."""
        self.kinds = tuple(k for k in (claimant.asynchronous, claimant.plain) if k.names)
        self.backoffs = {kind: EmptyPollBackoff(scan.PACES.empty) for kind in self.kinds}

    def begin_at_the_front(self) -> None:
        self._passes.clear()

    def claim(
        self, queues: Sequence[str], most: int, claimer: Claimer, *, exclusive: bool = True
    ) -> int:
        """Claim due tasks; return how many.

        Tasks behind gates have their turn once in a while, every other time as long as there are
        some, and when there are no others.
        """
        self._admission.wake_after_runs()
        began = time.monotonic()
        taken = self._of_queues(queues, most, claimer, exclusive=exclusive)
        self.backoffs[claimer].polled(began, found=taken)
        return taken

    def _of_queues(
        self, queues: Sequence[str], most: int, claimer: Claimer, *, exclusive: bool
    ) -> int:
        fair = self._fair_among(queues)
        if not fair:
            return self._by_age(queues, most, claimer, exclusive=exclusive)
        taken, self._turn = 0, self._turn + 1
        plain = [queue for queue in queues if queue not in fair]
        kinds = [plain, *([queue] for queue in sorted(fair))] if exclusive else [plain]
        kinds = [some for some in kinds if some]
        for place in range(len(kinds)):  # each is first in its turn, and gets half of what is left
            some = kinds[(self._turn + place) % len(kinds)]
            room = most - taken if place == len(kinds) - 1 else (most - taken + 1) // 2
            if room and some is plain:
                taken += self._by_age(some, room, claimer, exclusive=exclusive)
            elif room:
                taken += self._of_shares(some[0], room, claimer)
        return taken

    def _by_age(
        self, queues: Sequence[str], most: int, claimer: Claimer, *, exclusive: bool
    ) -> int:
        if not exclusive:
            return self._ungated(queues, most, claimer, exclusive=False)
        names, now = claimer.names, time.monotonic()
        turn = self._gates_at.get(names, 0.0) <= now
        claimed = self._of_gates(queues, most, claimer) if turn else 0
        if turn:
            self._gates_at[names] = NEXT_TIME if claimed else now + self._scan_interval_s
        if claimed:
            return claimed
        if self._gates_at[names] == NEXT_TIME:
            self._gates_at[names] = 0.0
        claimed = self._ungated(queues, most, claimer, exclusive=True)
        return claimed or (0 if turn else self._of_gates(queues, most, claimer))

    def _ungated(
        self, queues: Sequence[str], most: int, claimer: Claimer, *, exclusive: bool
    ) -> int:
        passes = self._passes[claimer.names, exclusive, tuple(queues)]
        goes_on, taken = True, 0
        while goes_on and not taken:
            began = time.monotonic()
            within, goes_on = start = passes.start(began)

            def ask(token: UUID, within: timedelta | None = within) -> list[ClaimedTask]:
                with self._database.single() as connection:
                    return claim_next(
                        connection,
                        queues,
                        most,
                        claimer,
                        token,
                        lonely=exclusive,
                        within=within,
                        places=passes.places,
                    )

            taken = len(self._claimant.claim(ask))
            passes.was_read(began, start, left=taken)
        return taken

    def _of_gates(self, queues: Sequence[str], most: int, claimer: Claimer) -> int:

        def ask(token: UUID) -> list[ClaimedTask]:
            with self._database.single() as connection:
                ids = find_gated_tasks(connection, queues, claimer.names, claimer.locking)
            return self._admission.claim(ids, claimer, token, most) if ids else []

        return len(self._claimant.claim(ask))

    def _of_shares(self, queue: str, most: int, claimer: Claimer) -> int:
        """Claim of a fair queue what comes next by its shares; return how many.

        The rows that are read are locked until the claim is committed: others skip them.
        """

        def ask(token: UUID) -> list[ClaimedTask]:
            with self._database.begin() as connection:
                found = self._fairness.due(
                    connection, queue, most, {}, names=claimer.names, lock=True
                )
                return [] if found is None else claim(connection, found.ids, claimer, token)

        claimed = self._claimant.claim(ask)
        self._fairness.went(queue, (task.task_id for task in claimed))
        return len(claimed) or self._of_gates([queue], most, claimer)

    def _fair_among(self, queues: Sequence[str]) -> set[str]:
        """Return which queues are fair; what an operator changes holds within a second."""
        now = time.monotonic()
        if now >= self._fair_until:
            with self._database.single() as connection:
                self._fair = self._fairness.among(connection, queues)
            self._fair_until = now + FAIR_S
        return self._fair & set(queues)


REMEMBERED_S = (
    5.0  # how long it remembers the names that others know, and the ids that it forwarded
)
FORWARD_AFTER_S = (0.0, 0.05, 0.2, 0.8)
"""How long an id waits before it is forwarded, each time that it comes back: the workers that know
it are busy. After that the scan finds it."""
MOST_FORWARDED = 10_000


class Forwarder:
    """Forwards ids of tasks that only other workers know; of one child."""

    def __init__(self, parts: ChildParts) -> None:
        self._lease = parts.settings.lease
        self._database = parts.database
        self._identity = parts.identity
        self._names: set[str] = set()
        self._forget_at = 0.0
        self._times: dict[int, int] = {}

    def forward_unknown(self, ids: Sequence[int]) -> None:
        """Forward those of a message's ids that only other workers know. Raises nothing.

        Usually all workers know the same; then it only reads which workers live, and rarely.
        """
        try:
            names = self._known_elsewhere()
            if names:
                with self._database.single() as connection:
                    found = tasks_of_other_workers(connection, ids, names)
                self._forward(found)
        except SQLAlchemyError:
            return

    def _known_elsewhere(self) -> set[str]:
        now = time.monotonic()
        if now >= self._forget_at:
            with self._database.single() as connection:
                own = self._identity
                self._names = handlers_of_other_workers(
                    connection, own.queues, own.handlers, self._lease
                )
            self._forget_at = now + REMEMBERED_S
            self._times.clear()
        return self._names

    def _forward(self, found: Sequence[tuple[str, int]]) -> None:
        if len(self._times) >= MOST_FORWARDED:
            self._times.clear()
        now = time.monotonic()
        again: list[Hint] = []
        for queue, task_id in found:
            times = self._times.get(task_id, 0)
            self._times[task_id] = times + 1
            if times < len(FORWARD_AFTER_S):
                again.append(Hint(queue, task_id, now + FORWARD_AFTER_S[times]))
        HINTS.offer(again)


@dataclass(frozen=True, slots=True)
class Identity:
    """One incarnation of a child: no other ever has its owner name."""

    owner: str
    node: str
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    threads: int  # how many messages it carries out at a time
    parent: int | None  # the pid of the process that watches this one, if one does

    @property
    def watched(self) -> bool:
        """Whether a parent kills this child at a hard limit, and replaces it."""
        return self.parent is not None

    @property
    def orphaned(self) -> bool:
        """Whether the parent is gone: no one would reap this child, so it claims nothing more."""
        return self.parent is not None and os.getppid() != self.parent


@dataclass(frozen=True, slots=True)
class ChildParts:
    settings: Settings
    registry: Registry
    identity: Identity
    database: Database
    slot: Slot  # the child's record for its parent and its siblings
    inflight: InFlight
    admission: AdmissionControl
