"""Drain and travel: run what is due in this process, with faults that a test orders."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

from sqlalchemy.util import greenlet_spawn

from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.durations import Duration, named_duration
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.handlers.spec import Handler, HandlerSpec
from tasks_app.domain.tasks.run import ClaimedTask, Fence, Run
from tasks_app.pool.flow_control.order_and_limits import find_gated_tasks
from tasks_app.pool.runs.claim import claim_next
from tasks_app.pool.runs.leases import rescue_claims
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks import browse
from tasks_app.pool.testing import next_instant, shift_fired, shift_instants
from tasks_app.runtime.api.built_in import with_ours
from tasks_app.runtime.db.connections import Async, Raw, Sync, checked_async, shown, unwrapped
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import PendingWrite
from tasks_app.runtime.execution.claims import claimer_of
from tasks_app.runtime.execution.completion import FailurePolicy
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.settler import notices_of
from tasks_app.runtime.flow_control import breakers
from tasks_app.runtime.flow_control.admission import AdmissionControl, LockNames
from tasks_app.runtime.handlers.checkpoint import ActiveRun
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.middleware import Middleware, load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_claim, of_outline
from tasks_app.runtime.leader.rescuer import Rescuer, Sweeper
from tasks_app.runtime.locks.run_locks import LocksOfChild
from tasks_app.runtime.schedules.declared import bring_in_schedules
from tasks_app.runtime.schedules.scheduler import Scheduler
from tasks_app.runtime.worker.standalone import run_work
from tasks_app.testing.handler_call import LocklessContext, in_own_loop
from tasks_app.testing.results import Drained, collected, name_of
from tasks_app.testing.transaction import NO_GUARD, InlineLane, OneConnection, joined

MOST_RUNS = 100
"""Of one task in one drain."""
CAUGHT = (Exception, SystemExit, asyncio.CancelledError)
"""The outcome of a run. Others end the test: an interrupt, or pytest's own."""


def drain(
    session: Sync | Raw | Settings | None = None,
    *,
    settings: Settings | None = None,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
) -> Drained:
    """Run due tasks until none is left, and return what became of each.

    With the ``session`` of the test (what ``create_task`` takes): in its transaction, which may be
    rolled back at its end. Each run is a savepoint, which its error undoes. Time limits are not
    enforced, and one task runs at a time.

    Without: what is committed, by a worker on connections of its own, which commits. Settings come
    from the environment unless given.

    It does not wait for later retries: :func:`travel` brings them due.

    >>> drained = drain(session)
    >>> [run.name for run in drained.succeeded]
    ['mail.send']

    Raises:
        ConfigurationError: a setting is wrong, or ``session`` is neither Settings nor a session.
        InvalidConnectionError: the connection is in autocommit, so it has no transaction; or it is
            of another driver than psycopg.
    """
    if isinstance(session, Settings | None):
        return _drain_committed(session or settings or load_settings(), registry, queues)
    whole: Any = unwrapped(session)
    advice = "Pass Settings(database_url=…), a session, or nothing"
    if hasattr(whole, "run_sync"):
        advice = "Use: await adrain(session)"
    elif hasattr(whole, "execute"):
        return _drain_joined(whole, settings, registry, queues)
    raise ConfigurationError(f"{shown(whole)} is neither Settings nor a session. {advice}.")


async def adrain(
    session: Async,
    *,
    settings: Settings | None = None,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
) -> Drained:
    """Do as :func:`drain` in the transaction of an async test.

    Plain handlers run in it, too: they hold up the event loop.
    """
    return await greenlet_spawn(_drain_joined, checked_async(session), settings, registry, queues)


def travel(
    span: Duration,
    session: Sync | Raw | None = None,
    *,
    settings: Settings | None = None,
    registry: Registry = HANDLERS,
    most_instants: int = 10_000,
) -> None:
    """Let ``span`` pass for all tasks: retries, delays, expiries and leases come due.

    With ``session`` in the transaction of the test, else committed. It runs nothing: :func:`drain`
    does. The rows' instants are moved into the past, so ``due_at`` and ``created_at`` are earlier
    afterwards. Schedules fire for each instant in between, as if a leader had always been there;
    create them before the first travel. Periods of unique keys, pauses, breakers and rates pass,
    too. Windows of queues, retention and the clock of your own code do not notice.

    >>> task_id = create_task(session, send_mail, {"to": "b@example.org"}, delay="1h")
    >>> travel("1h", session)
    >>> drain(session).of(task_id).assert_succeeded().counts
    {'SUCCEEDED': 1}

    Raises:
        ValueError: ``span`` is no duration, or a schedule has too many instants in it.
    """
    if session is not None:
        _passes(session, span, registry, most_instants)
        return
    database = Database((settings or load_settings()).database)
    try:
        with database.begin() as connection:
            _passes(connection, span, registry, most_instants)
    finally:
        database.dispose()


async def atravel(
    span: Duration,
    session: Async,
    *,
    registry: Registry = HANDLERS,
    most_instants: int = 10_000,
) -> None:
    """Do as :func:`travel` in the transaction of an async test."""
    await greenlet_spawn(_passes, checked_async(session), span, registry, most_instants)


def _drain_committed(settings: Settings, registry: Registry, queues: Sequence[str]) -> Drained:
    database = Database(settings.database, prepare=settings.prepare)
    faulty = layer(lambda context: _rescue(database, context.fence, settings.max_crashes))
    layers = (faulty, *load_middleware(settings.layers))
    try:
        with collected({}) as runs:
            run_work(settings, registry=registry, queues=queues, middleware=layers, drain=True)
        return Drained(tuple(runs))
    finally:
        database.dispose()


def _drain_joined(
    session: Any, settings: Settings | None, registry: Registry, queues: Sequence[str]
) -> Drained:
    settings, raised = settings or load_settings(), dict[Run, BaseException]()
    with joined(session) as database, collected(raised) as runs:
        TransactionDrain(database, settings, registry, queues, raised).run()
    return Drained(tuple(runs))


def _passes(session: Any, span: Duration, registry: Registry, most: int) -> None:
    passes = named_duration("span", span)
    with joined(session) as database:
        bring_in_schedules(database, registry)
        connection, scheduler = database.connection, Scheduler(database)
        passed, now = shift_instants(connection, passes)
        until, at, number = now + passed, None, 0
        while (at := next_instant(connection, until, after=at)) is not None:
            number += 1
            if number > most:
                raise ValueError(
                    f"span {span!r} holds more than {most} instants of schedules. Travel less far, "
                    "disable the schedule that fires so often, or raise most_instants."
                )
            scheduler.run_once(now=at)
        scheduler.run_once(now=until)
        shift_fired(connection, passed)


class TransactionDrain:
    """Claims, runs and settles on one connection, with a worker's parts; COMMITs are savepoints."""

    def __init__(
        self,
        database: OneConnection,
        settings: Settings,
        registry: Registry,
        queues: Sequence[str],
        raised: dict[Run, BaseException],
    ) -> None:
        """``raised`` gets what each handler raised."""
        self._settings, self._database = settings, database
        self._registry = registry = with_ours(registry)
        self._queues = tuple(queues) or registry.queues
        self._raised = raised
        self._invocation = InlineInvocation(settings, database)
        self._policy = FailurePolicy(settings, database, self._invocation)
        self._admission = AdmissionControl(database, LockNames(database, settings, registry))
        self._calls = breakers.DependencyReport(database, self._invocation.dependencies)
        self._locks = LocksOfChild(settings, database, self._write)
        self._claimer = claimer_of("tasks_app.testing", settings.lease, registry)

    def run(self) -> None:
        bring_in_schedules(self._database, self._registry)
        breakers.bring_in_breakers(self._database, self._registry)
        runs = Counter[int]()
        while (task := self._claimed() or self._claimed_later()) is not None:
            runs[task.task_id] += 1
            if runs[task.task_id] > MOST_RUNS:
                raise RuntimeError(
                    f"{task.name} comes back at once, again and again, and there is no end. "
                    "Let it wait for longer than 0 s, or return."
                )
            self._carry_out(task)

    def _claimed(self) -> ClaimedTask | None:
        token = uuid4()
        with self._database.begin() as connection:
            claimed = claim_next(connection, self._queues, 1, self._claimer, token)
            of = self._claimer
            waiting = (
                [] if claimed else find_gated_tasks(connection, self._queues, of.names, of.locking)
            )
        if waiting:
            claimed = self._admission.claim(waiting, self._claimer, token, 1)
        return claimed[0] if claimed else None

    def _claimed_later(self) -> ClaimedTask | None:
        """Claim when all is done that a leader does in between."""
        breakers.advance_breakers(self._database)
        Scheduler(self._database).run_once()
        Rescuer(self._settings, self._database).run_once()
        Sweeper(self._database).run_once()
        self._admission.wake_due()
        return self._claimed()

    def _carry_out(self, task: ClaimedTask) -> None:
        spec = self._registry.get(task.name)
        assert spec is not None  # noqa: S101  it was claimed by the names of the registry
        HOOKS.tell([of_claim(NoticeKind.STARTED, task)])
        if spec.is_async and not self._database.is_async:
            in_own_loop(self._run, task, spec)
        else:
            self._run(task, spec)
        if self._admission.ended([task.fence]):
            self._admission.wake_after_runs()
        self._calls.report_failures()
        self._calls.tell()

    def _run(self, task: ClaimedTask, spec: HandlerSpec) -> None:
        transaction = self._invocation.lane(spec).transaction(task.fence)
        run = ActiveRun(task, time.monotonic(), task.cancel_requested)
        in_loop = spec.is_async and self._database.is_async
        made = LocklessContext if in_loop else TaskContext  # locks would block the loop
        context = made(run, transaction, None, self._settings.log_prefix, self._locks)
        try:
            with self._database.run(transaction):
                settlement = run.with_sub_status(self._invocation.make(run, spec, context, None))
                context.close()
                state = transaction.conclude(settlement)
        except CrashOrdered:
            _rescue(self._database, task.fence, self._settings.max_crashes)
            return
        except CAUGHT as raised:
            self._raised[task.run] = raised
            settlement = run.with_sub_status(self._policy.on_handler(task, spec, raised))
            with self._database.begin() as connection:
                state = settle_one(connection, settlement)
        finally:
            context.close()
            context.end_locks()
        if state is None:
            raise RuntimeError(
                f"Task {task.task_id} ({task.name}) was taken from its run: "
                "the handler, or what it called, moved its row."
            )
        HOOKS.tell(notices_of([settlement], {task.task_id: state}))

    def _write(self, write: PendingWrite) -> None:
        with self._database.begin() as connection:
            write(connection)


class InlineInvocation(Invocation):
    """Calls handlers in the thread of the test."""

    def __init__(self, settings: Settings, database: OneConnection) -> None:
        layers = (layer(), *load_middleware(settings.layers))
        super().__init__(settings, database, NO_GUARD, layers)
        self._async = InlineLane(database, NO_GUARD, 1)


def _rescue(database: Database, fence: Fence, max_crashes: int) -> None:
    """Take back the claim of a process that counts as dead; the task is due at once."""
    with database.begin() as connection:
        moved = rescue_claims(connection, [fence], lease=timedelta(0), max_crashes=max_crashes)
        outlines = browse.outlines(connection, list(moved))
    HOOKS.tell(of_outline(outline, NoticeKind.RESCUED) for outline in outlines)


When = Literal["before", "after"]


def fail_next(
    task: Handler[Any, Any] | str,
    error: BaseException | type[BaseException],
    *,
    times: int = 1,
    when: When = "after",
) -> None:
    """Let the next run of this name raise ``error``, in a drain.

    ``after``: when its handler has returned, so that all it did outside of its transaction is done;
    ``before``: instead of its handler. The task is retried, or fails, as its handler declares.

    >>> fail_next("mail.send", ConnectionResetError)
    >>> len(drain(session).of("mail.send").waiting)
    1
    """
    _order(task, error() if isinstance(error, type) else error, times, when)


def crash_next(task: Handler[Any, Any] | str, *, times: int = 1, when: When = "after") -> None:
    """Let the next run of this name end as if its process had died before the COMMIT, in a drain.

    What it wrote through ``ctx.session`` is gone, what it did elsewhere is done. The task is
    rescued, as when a machine vanishes, and comes back at once: no attempt is charged, and
    after ``max_crashes`` (5) it fails. An ``at_most_once`` task fails with "outcome unknown".

    >>> crash_next(send_mail)
    >>> len(drain(session).assert_succeeded().runs)
    2
    """
    _order(task, None, times, when)


@dataclass(frozen=True, slots=True)
class OrderedFault:
    """What is to happen to one run."""

    name: str
    error: BaseException | None
    """None: a crash."""
    when: When


class CrashOrdered(BaseException):
    """The process of the run has died."""


FAULTS: list[OrderedFault] = []
"""Those that have hit no run yet; the plugin of pytest clears them after each test."""


def _order(
    task: Handler[Any, Any] | str, error: BaseException | None, times: int, when: When
) -> None:
    if when not in {"before", "after"}:
        raise ValueError(f"when is {when!r}. Allowed: before, after.")
    FAULTS.extend([OrderedFault(name_of(task), error, when)] * times)


def layer(on_crash: Callable[[TaskContext], object] = lambda _: None) -> Middleware:
    """Return what surrounds each run of a drain; ``on_crash`` is called before the run ends."""

    def faulty(context: TaskContext, call: Callable[[], Any]) -> Any:
        fault = next((each for each in FAULTS if each.name == context.name), None)
        if fault is None:
            return call()
        FAULTS.remove(fault)
        if fault.when == "after":
            call()
        if fault.error is not None:
            raise fault.error
        on_crash(context)
        raise CrashOrdered

    return faulty
