"""The reaper: when a child is dead, its slot says which task is charged.

Exactly the task that ran is charged, or those that were past their hard limits; their neighbours go
back uncharged. One that was killed because it was cancelled ends CANCELLED. Any child may reap any
other of its worker, twice at the same time too: they meet at the fence.
"""

from __future__ import annotations

import time
from datetime import timedelta
from random import Random
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.settlement import (
    PROCESS_DIED,
    PROCESS_KILLED,
    VANISHED,
    settle_crash,
    settle_interrupt,
    settle_kill,
)
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Run, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.claim import claims_of
from tasks_app.pool.runs.leases import release, rescue_claims
from tasks_app.pool.runs.settle import settle_each
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.browse import Outline
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.execution.settler import report_returned, report_settled
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.hint_sender import Hint
from tasks_app.runtime.hints import HINTS, hints_of_returned
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_outline
from tasks_app.runtime.scoreboard import Scoreboard, SlotView, Stage

log = quiet_logger(__name__)

MOST_NAMED = 10
REPORTED_WITHIN = timedelta(seconds=2)
"""A reaper that charges a task reports that by then, or is dead."""


class _Found(NamedTuple):
    """What a dead child held: ids and names."""

    guilty: dict[int, str]
    innocent: dict[int, str]
    reported: set[int]  # those whose charge was reported
    unsure: set[int]  # perhaps charged by this reaper: its COMMIT was not answered
    refused: set[int]  # those that the database refuses to move; the rescuer tries after the lease


class Reaper:
    """Of one child, for its siblings."""

    def __init__(
        self, database: Database, slots: Scoreboard, registry: Registry, settings: Settings
    ) -> None:
        self._database = database
        self._admission = AdmissionControl(database)
        self._slots = slots
        self._registry = registry
        self._settings = settings
        self._rng = Random()  # noqa: S311  jitter, not a secret
        self._found: dict[str, _Found] = {}
        """What dead children held that are not done with yet, by owner."""

    def reap_dead(self) -> int:
        """Reap every child of this worker whose process is gone; return how many could not be.

        A child cannot be reaped while another transaction holds one of its rows.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer; try again later.
        """
        troubles: list[SQLAlchemyError] = []
        still_open = 0
        views = self._slots.occupied()
        for owner in self._found.keys() - {view.owner for view in views}:
            self._found.pop(owner, None)  # another has reaped it
        for view in views:
            if not view.dead:
                continue
            last = self._slots.read(view.index)  # what it wrote after we read, before it died
            if last is None or last.owner != view.owner:
                continue
            try:
                still_open += not self._reap(last)
            except SQLAlchemyError as error:  # one must not keep the others from being reaped
                troubles.append(error)
        if troubles:
            raise troubles[0]
        return still_open

    def _reap(self, view: SlotView) -> bool:
        """Give the neighbours back, then charge; locked rows wait for the next round.

        In this order, and without waiting for locks: an open transaction on the guilty row must
        leave neither its neighbours nor our own leases to the clock.
        """
        with self._database.begin() as connection:
            claims = claims_of(connection, view.owner)
        ran = frozenset(view.running)
        guilty = [task for task in claims if task.run in ran or view.unlisted]
        innocent = [task for task in claims if not (task.run in ran or view.unlisted)]
        found = self._found.setdefault(view.owner, _Found({}, {}, set(), set(), set()))
        found.guilty.update((task.task_id, task.name) for task in guilty)
        found.innocent.update((task.task_id, task.name) for task in innocent)
        if innocent and (view.running or self._leaves):
            self._give_back(innocent, found)
        self._charge(view, guilty if view.running or self._leaves else claims, found)
        with self._database.begin() as connection:
            if any(c.task_id not in found.refused for c in claims_of(connection, view.owner)):
                return False
            heartbeats.remove_heartbeat(connection, view.owner)
        self._admission.gone([task.task_id for task in claims])
        missed = self._missed(view, found)
        if missed is None:
            return False
        self._found.pop(view.owner, None)  # two threads of this child may reap at once
        found.guilty.update((outline.id, outline.name) for outline in missed)
        if self._slots.free(view):
            HOOKS.tell(of_outline(outline, NoticeKind.FAILED) for outline in missed)
            back = f"; {len(found.innocent)} not yet begun go back" if found.innocent else ""
            blame = self._who_is_charged(view, found.guilty)
            log.warning("child process %s died: %s%s", view.pid, blame, back)
        return True

    def _missed(self, view: SlotView, found: _Found) -> list[Outline] | None:
        """Return charges that were not reported, as the reaper or its COMMIT's reply was lost.

        Only of tasks that are over: the next run reports the others. None: another reaper charged
        one just now, and is about to report it.
        """
        unreported = {run for run in view.running if run.task_id not in found.reported}
        if not unreported:
            return []
        with self._database.begin() as connection:
            ids = [run.task_id for run in unreported]
            outlines = browse.outlines(connection, ids)
            lately = browse.ended_lately(connection, ids, REPORTED_WITHIN)
        missed = [
            outline
            for outline in outlines
            if Run(outline.id, outline.attempt) in unreported
            and outline.state is State.FAILED
            and (outline.error or "").startswith(PROCESS_DIED)
        ]
        others = lately - found.unsure
        return None if any(outline.id in others for outline in missed) else missed

    def _who_is_charged(self, view: SlotView, guilty: dict[int, str]) -> str:
        past = {run.task_id for run in view.past(view.killed)} & guilty.keys()
        shown = {task_id: guilty[task_id] for task_id in past} or guilty
        tasks = [f"task {task_id} ({name})" for task_id, name in sorted(shown.items())]
        more = f" and {len(tasks) - MOST_NAMED} more" if len(tasks) > MOST_NAMED else ""
        named = ", ".join(tasks[:MOST_NAMED]) + more
        if not guilty and view.running:  # by itself, or by another reaper
            return "what ran in it is settled already"
        if not guilty:
            return "no task is charged, as no handler had begun in it"
        if self._leaves:
            return f"no task is charged, as the worker is leaving; it ran {named}"
        if past and not self._is_of_one_call(view, {guilty[task_id] for task_id in past}):
            beside = len(guilty) - len(past)
            back = f"; {beside} that ran beside it, uncharged" if beside else ""
            if view.for_cancel:
                return f"{named} was cancelled, and killed{back}"
            return f"{named} ran past the hard limit and is charged{back}"
        if not view.killed and self._is_sure(view):
            return f"{named} ran in it and is charged"
        return f"no task is charged; it was one of {named}"

    @staticmethod
    def _is_sure(view: SlotView) -> bool:
        return len(view.running) + view.unlisted == 1

    def _charge(self, view: SlotView, candidates: list[ClaimedTask], found: _Found) -> None:
        """Charge the task that ran alone, or those that were past their hard limits.

        Otherwise the guilty one is unknown; it may be any claim of the child if more ran than the
        list has room for. A child that dies while its worker leaves was killed for that.
        """
        charged = [task for task in candidates if self._is_charged(view, task)]
        others = [task for task in candidates if task not in charged]
        if charged:
            self._settle(view, charged, found)
        if not others:
            return
        if view.for_cancel:
            self._give_back([task for task in others if not task.at_most_once], found)
            others = [task for task in others if task.at_most_once]
        kind = PROCESS_KILLED if view.killed else VANISHED
        with self._database.begin() as connection:
            moved = rescue_claims(
                connection,
                [task.fence for task in others],
                lease=self._settings.lease,
                max_crashes=self._settings.max_crashes,
                kind=kind,
                left=found.refused,
            )
        report_returned(others, moved, Event.RESCUE, why=kind)

    def _give_back(self, tasks: list[ClaimedTask], found: _Found) -> None:
        with self._database.begin() as connection:
            moved = release(connection, [task.fence for task in tasks], left=found.refused)
        report_returned(tasks, moved, Event.RELEASE)
        _hint(tasks, moved)

    def _settle(self, view: SlotView, charged: list[ClaimedTask], found: _Found) -> None:
        settlements = [self._verdict(view, task) for task in charged]
        try:
            with self._database.begin() as connection:
                moved = settle_each(connection, settlements, found.refused)
        except SQLAlchemyError:
            found.unsure.update(task.task_id for task in charged)
            raise
        HINTS.offer(hints_of_returned(s for s in settlements if s.fence.task_id in moved))
        report_settled(settlements, moved)
        found.reported.update(moved)

    def _is_charged(self, view: SlotView, task: ClaimedTask) -> bool:
        """Whether its outcome is that of a run that ended its process, or that was let go."""
        if self._leaves:
            return True
        if not view.killed:
            return self._is_sure(view)
        past = view.past(view.killed)
        return task.run in past and not self._is_of_one_call(view, {task.name})

    def _is_of_one_call(self, view: SlotView, names: set[str]) -> bool:
        """Whether a bulk call ran past its hard limit, so that each of its tasks may be why.

        Then nobody is charged, and each runs alone next time.
        """
        specs = [spec for name in names if (spec := self._registry.get(name))]
        several = len(view.past(view.killed)) > 1 and not view.for_cancel
        return several and any(spec.at_once > 1 for spec in specs)

    @property
    def _leaves(self) -> bool:
        return self._slots.stage is Stage.LEAVES

    def _verdict(self, view: SlotView, task: ClaimedTask) -> Settlement:
        spec = self._registry.get(task.name)
        if self._leaves:
            return settle_interrupt(task, spec, self._rng)
        if view.for_cancel:
            return settle_kill(
                task, f"Its process {view.pid} was killed, as whoever cancelled it asked for."
            )
        return settle_crash(task, spec, self._cause(view, task.run), self._rng)

    @staticmethod
    def _cause(view: SlotView, run: Run) -> Cause:
        limit = view.past(view.killed or time.monotonic()).get(run)
        if limit is not None:
            return Cause(
                PROCESS_DIED, f"Its process {view.pid} was killed at its hard limit of {limit:g} s."
            )
        return Cause(PROCESS_DIED, f"Its process {view.pid} died while only this task ran in it.")


def _hint(tasks: list[ClaimedTask], moved: dict[int, State]) -> None:
    """The next scan is up to a second away; another child may start them at once."""
    HINTS.offer(Hint(task.queue, task.task_id) for task in tasks if task.task_id in moved)
